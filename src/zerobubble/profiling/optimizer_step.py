"""What does the optimizer add to a step for one layer, in time and in bytes?"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zerobubble.profile import LayerCosts
from zerobubble.profiling.ranks import Ranks
from zerobubble.profiling.timing import Stopwatch
from zerobubble.runtime.attempt import attempt
from zerobubble.runtime.master_weights import build_weights


def measure_weights(module: nn.Module, ranks: Ranks, validate: str) -> LayerCosts:
    """Give the bytes of a layer's weights, and the time in which AdamW steps them.

    With ``post`` a step is the norm, the attempt and its end, as on all ranks but the last.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    sizes = LayerCosts(
        parameter_bytes=_num_bytes([*module.parameters(), *module.buffers()]),
        gradient_bytes=_num_bytes(trained),
    )
    if not trained:
        return sizes
    plain = _Step(module)
    guessed = _PostStep(module) if validate == "post" else plain
    times = _time(dict.fromkeys([plain, guessed]), ranks)
    return replace(
        sizes,
        optimizer_ms=times[guessed],
        plain_optimizer_ms=times[plain],
        optimizer_bytes=guessed.state_bytes + guessed.kept_bytes,
    )


def _time(steps: Iterable["_Step"], ranks: Ranks) -> dict["_Step", float]:
    """Time steps of several kinds, which take turns."""
    watch, names = Stopwatch(ranks.transport.device), {step: str(i) for i, step in enumerate(steps)}

    def run(step: "_Step") -> None:
        step.give_gradients()
        watch.run(names[step], step.run)

    with torch.no_grad():
        ranks.repeat([partial(run, step) for step in names], watch.clear)
    times = ranks.medians(watch.medians_ms())
    return {step: times[name] for step, name in names.items()}


class _Step:
    """A step of the optimizer that is known to stand."""

    def __init__(self, module: nn.Module) -> None:
        adamw = torch.optim.AdamW
        self.weights = build_weights(adamw, dict(module.named_parameters()), {}, False)
        self.kept_bytes = 0

    @property
    def inner(self) -> torch.optim.Optimizer:
        assert self.weights.inner is not None, "the layer has something to train"
        return self.weights.inner

    @property
    def state_bytes(self) -> int:
        return _num_bytes([t for state in self.inner.state.values() for t in tree_leaves(state)])

    def give_gradients(self) -> None:
        for parameter in self.weights.owned:
            parameter.grad = torch.full_like(parameter, 1e-3)

    def run(self) -> None:
        _norm(self.weights.collect_gradients())
        self.inner.step()
        self.weights.drop_gradients()


class _PostStep(_Step):
    """A step on a guess that turns out right."""

    def run(self) -> None:
        owned = self.weights.collect_gradients()
        _norm(owned)
        num_bytes = sum(each.nbytes for each in owned)
        begun = attempt(self.weights, owned)
        self.kept_bytes = _num_bytes(begun.kept) - num_bytes
        begun.commit()


def _norm(owned: list[nn.Parameter]) -> None:
    """Compute the norm as the runtime does, whose ranks exchange it."""
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    torch.stack([norm(p.grad) for p in owned if p.grad is not None]).square().sum().cpu()


def _num_bytes(values: Sequence[Tensor]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
