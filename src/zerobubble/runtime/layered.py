"""What must be known about a model to train it in a pipeline, besides the schedule?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zerobubble.errors import UsageError
from zerobubble.runtime.partition import Layer, numbered
from zerobubble.runtime.stage import LossFunction


@dataclass(frozen=True)
class LayeredModel:
    """A model as layers in order, with one value flowing through them.

    Attributes:
        name: of the model.
        layers: modules, or callables without arguments that build one.
        layer_names: of every layer, for people: ``block 3``.
        loss_fn: maps the output of the last layer and the target of a microbatch to a scalar.
        sample_batch: gives input and target of a batch of so many samples, as ``Pipeline.step``
            takes them; values do not matter, shapes and dtypes do.
        tied: groups of parameters with one value, each named ``layer number.parameter name``.
        parameter_name: gives the name in the unpipelined model of a layer's parameter or buffer.
        kinds: layers with equal values cost the same; None: those of equal structure do.

    Raises:
        UsageError: there are not as many names, or kinds, as layers.
    """

    name: str
    layers: Sequence[Layer]
    layer_names: tuple[str, ...]
    loss_fn: LossFunction
    sample_batch: Callable[[int], tuple[Any, Any]]
    tied: tuple[tuple[str, ...], ...] = ()
    parameter_name: Callable[[int, str], str] = numbered
    kinds: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what, given in (("names", self.layer_names), ("kinds", self.kinds)):
            if given is not None and len(given) != len(self.layers):
                raise UsageError(
                    f"model {self.name}: {len(given)} layer {what} for {len(self.layers)} layers"
                )
