"""Which stage holds which layers, and how is a layer built on the rank that needs it?"""

from collections.abc import Callable, Collection, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zerobubble.errors import UsageError

Layer = nn.Module | Callable[[], nn.Module]
ANY = "**"


def split_layers(
    num_layers: int, num_stages: int, layers_per_stage: Sequence[int] | None = None
) -> list[range]:
    """Assign consecutive layers to stages: as given, or evenly with the longer stages first.

    Raises:
        UsageError: there are fewer layers than stages, or the given numbers do not add up.

    >>> split_layers(5, 2)
    [range(0, 3), range(3, 5)]
    """
    if layers_per_stage is None:
        if num_layers < num_stages:
            raise UsageError(
                f"{num_stages} stages need at least as many layers, but there are {num_layers}: "
                "use fewer ranks or stages, or a deeper model"
            )
        size, longer = divmod(num_layers, num_stages)
        layers_per_stage = [size + (stage < longer) for stage in range(num_stages)]
    counts = list(layers_per_stage)
    if len(counts) != num_stages or sum(counts) != num_layers or min(counts) < 1:
        raise UsageError(
            f"layers per stage {counts} must be {num_stages} positive numbers that add up to "
            f"{num_layers}"
        )
    ends = np.cumsum(counts).tolist()
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def numbered(layer: int, name: str) -> str:
    """Name a parameter as an ``nn.Sequential`` of the layers does.

    >>> numbered(3, "norm.weight")
    '3.norm.weight'
    """
    return f"{layer}.{name}"


class StageModule(nn.Module):
    """The layers of one stage, run one after the other under their numbers in the whole model.

    Args:
        layers: by their numbers.
        parameter_name: gives the name in the whole model of what a layer holds.
    """

    def __init__(
        self,
        layers: dict[int, nn.Module],
        parameter_name: Callable[[int, str], str] = numbered,
    ) -> None:
        super().__init__()
        self._parameter_name = parameter_name
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self._taken = [_keywords_of(layer) for layer in layers.values()]

    def forward(self, value: Any, /, **keywords: Any) -> Any:
        """Feed a value through the layers, each with those keywords that its forward names."""
        if not keywords:
            for layer in self.layers.values():
                value = layer(value)
            return value
        for layer, taken in zip(self.layers.values(), self._taken, strict=True):
            value = layer(value, **{k: v for k, v in keywords.items() if takes(taken, k)})
        return value

    @property
    def keywords(self) -> set[str]:
        """The keywords that the layers take; ``ANY`` is among them if a layer takes all."""
        return {name for taken in self._taken for name in taken}

    def numbered_parameters(self) -> dict[str, nn.Parameter]:
        """Map the names of all parameters in the layers, ``number.name``, to them."""
        return dict(self.layers.named_parameters(remove_duplicate=False))

    def name_in_model(self, name: str) -> str:
        """Give the name in the whole model of what is ``number.name`` in the layers."""
        number, _, rest = name.partition(".")
        return self._parameter_name(int(number), rest)


def takes(keywords: Collection[str], name: str) -> bool:
    """Say whether a keyword is among those that are taken."""
    return name in keywords or ANY in keywords


def _keywords_of(layer: nn.Module) -> frozenset[str]:
    """List what the forward of a layer takes beside the value that flows through."""
    while isinstance(inner := getattr(layer, "_orig_mod", None), nn.Module) or (
        isinstance(layer, DistributedDataParallel) and (inner := layer.module)
    ):
        layer = inner
    try:
        parameters = list(signature(layer.forward).parameters.values())
    except ValueError:  # code without a signature
        return frozenset()
    named = [
        p for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    value = [p.name for p in parameters[:1] if p.kind is not Parameter.KEYWORD_ONLY]
    takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    return frozenset(p.name for p in named) - set(value) | ({ANY} if takes_all else set())


def build_stage(
    layers: Sequence[Layer],
    numbers: range,
    seed: int,
    device: torch.device,
    parameter_name: Callable[[int, str], str] = numbered,
) -> StageModule:
    """Build the layers of one stage on a device.

    A layer given as a callable is built under a random seed of its own, made from ``seed`` and
    its number, so that its initial values do not depend on the partition.

    Raises:
        UsageError: a layer is neither a module nor a callable that returns one.
    """
    built = {i: _build_layer(layers[i], i, seed).to(device) for i in numbers}
    return StageModule(built, parameter_name)


def _build_layer(layer: Layer, number: int, seed: int) -> nn.Module:
    if isinstance(layer, nn.Module):
        return layer
    built = None
    if callable(layer):
        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
            built = layer()
    if not isinstance(built, nn.Module):
        raise UsageError(
            f"layer {number} must be a module or a callable without arguments that builds one, "
            f"not {layer!r}"
        )
    return built
