"""What does the optimizer add to a step for one layer, in time and in bytes?"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zerobubble.profile import LayerCosts
from zerobubble.profiling.ranks import Ranks
from zerobubble.profiling.timing import Stopwatch
from zerobubble.runtime.attempt import attempt
from zerobubble.runtime.master_weights import Weights, build_weights


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
    weights = build_weights(torch.optim.AdamW, dict(module.named_parameters()), {}, False)
    watch = Stopwatch(ranks.transport.device)
    step = _PostStep(weights) if validate == "post" else _Step(weights)

    def round_of() -> None:
        for parameter in trained:
            parameter.grad = torch.full_like(parameter, 1e-3)
        watch.run("step", step.run)

    with torch.no_grad():
        ranks.repeat(round_of, watch.clear)
    assert weights.inner is not None
    states = [leaf for state in weights.inner.state.values() for leaf in tree_leaves(state)]
    return LayerCosts(
        optimizer_ms=ranks.medians(watch.medians_ms())["step"],
        parameter_bytes=sizes.parameter_bytes,
        gradient_bytes=sizes.gradient_bytes,
        optimizer_bytes=_num_bytes(states) + step.kept_bytes,
    )


class _Step:
    """A step of the optimizer that is known to stand."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.kept_bytes = 0

    def run(self) -> None:
        _norm(self.weights.collect_gradients())
        assert self.weights.inner is not None
        self.weights.inner.step()
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
