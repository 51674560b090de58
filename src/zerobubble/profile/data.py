"""What is known about a model on a device before it is cut into stages?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from zerobubble.costs import LARGEST
from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value


@dataclass(frozen=True)
class LayerCosts:
    """What one layer costs for one microbatch of a certain size; times in ms.

    The last layer's costs include those of the loss.

    Attributes:
        forward_ms: time of F as a part of a split backward.
        backward_input_ms: time of B.
        backward_weight_ms: time of W.
        plain_forward_ms: time of F where the backward of the stage is not split.
        plain_backward_ms: time of BW there.
        optimizer_ms: what the layer adds to the time of an optimizer step; with post-validation,
            of one on a guess that turns out right.
        activation_bytes: what F saves for the backward, without the layer's input.
        kept_bytes: the part of it that W still holds after B.
        input_bytes: size of the layer's input, the tensors only.
        saved_input_bytes: ``input_bytes`` where F saves the input for the backward, else 0.
        kept_input_bytes: the part of that which W still holds after B.
        output_bytes: size of what travels on to the next layer.
        parameter_bytes: size of the parameters and buffers.
        gradient_bytes: size of their gradients.
        optimizer_bytes: size of the optimizer's state, and of what post-validation keeps.
        plain_optimizer_ms: what it adds on a rank that never guesses, such as the last one; 0 if
            that is the same.
    """

    forward_ms: float = 0.0
    backward_input_ms: float = 0.0
    backward_weight_ms: float = 0.0
    plain_forward_ms: float = 0.0
    plain_backward_ms: float = 0.0
    optimizer_ms: float = 0.0
    activation_bytes: float = 0.0
    kept_bytes: float = 0.0
    input_bytes: float = 0.0
    saved_input_bytes: float = 0.0
    kept_input_bytes: float = 0.0
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    plain_optimizer_ms: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            _require_number(f"layer costs: {each.name}", getattr(self, each.name))

    @property
    def compute_ms(self) -> float:
        """Time of F, B and W together."""
        return self.forward_ms + self.backward_input_ms + self.backward_weight_ms

    def optimizer_step_ms(self, guesses: bool) -> float:
        """What the layer adds to an optimizer step, on a rank that guesses the norm or does not."""
        return self.optimizer_ms if guesses else self.plain_optimizer_ms or self.optimizer_ms

    @property
    def weight_bytes(self) -> float:
        """Bytes that are there all the time: parameters, gradients and optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


@dataclass(frozen=True)
class Link:
    """How fast tensors travel from one rank to another.

    Attributes:
        latency_ms: time until the first byte has arrived.
        bytes_per_ms: bandwidth; inf for a link that takes only its latency.
    """

    latency_ms: float = 0.0
    bytes_per_ms: float = math.inf

    def __post_init__(self) -> None:
        _require_number("link: latency_ms", self.latency_ms)
        bandwidth = self.bytes_per_ms
        if not (_is_number(bandwidth) and 0 < bandwidth <= math.inf):
            raise UsageError(f"link: bytes_per_ms must be above 0, not {show_value(bandwidth)}")

    def transfer_ms(self, num_bytes: float) -> float:
        """Time in which a tensor of so many bytes has arrived."""
        return self.latency_ms + num_bytes / self.bytes_per_ms


@dataclass(frozen=True)
class Profile:
    """The costs of every layer of a model on one kind of device, and of the links between ranks.

    Attributes:
        model: name of the model.
        device: name of the device, for people.
        layer_names: of every layer, in order, for people.
        layers: for each microbatch size, in samples, the costs of every layer in order.
        link: between two ranks, where ``links`` has none for them.
        links: those that differ, by the lower and the higher rank.
        step_overhead_ms: what a step takes besides its ops and the optimizer.
        memory_bytes: memory of the device; None if unknown.
        host: the link between a device and its host, over which activations are offloaded; one
            direction does not slow the other.

    Raises:
        UsageError: there is no microbatch size, a table has not one row for each layer, or a value
            is not what it should be.
    """

    model: str
    device: str
    layer_names: tuple[str, ...]
    layers: Mapping[int, tuple[LayerCosts, ...]]
    link: Link = field(default_factory=Link)
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    step_overhead_ms: float = 0.0
    memory_bytes: float | None = None
    host: Link = field(default_factory=Link)

    def __post_init__(self) -> None:
        for what, value, kind in (
            ("layers", self.layers, Mapping),
            ("links", self.links, Mapping),
            ("layer_names", self.layer_names, tuple),
        ):
            _require_kind(what, value, kind)
        if not self.layers or not self.layer_names:
            raise UsageError("profile: there must be a layer and a microbatch size")
        for size, table in self.layers.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise UsageError(f"profile: a microbatch size must be at least 1, not {size!r}")
            _require_kind(f"costs at microbatch size {size}", table, tuple)
            if len(table) != len(self.layer_names):
                raise UsageError(
                    f"profile: microbatch size {size} has costs of {len(table)} layers, but there "
                    f"are {len(self.layer_names)}"
                )
            for number, row in enumerate(table):
                _require_kind(f"costs of layer {number} at microbatch size {size}", row, LayerCosts)
        _require_kind("link", self.link, Link)
        _require_kind("host", self.host, Link)
        for ranks, link in self.links.items():
            _require_kind(f"links between {show_value(ranks)}", link, Link)
        _require_number("profile: step_overhead_ms", self.step_overhead_ms)
        if self.memory_bytes is not None:
            _require_number("profile: memory_bytes", self.memory_bytes)
        object.__setattr__(self, "layers", MappingProxyType(dict(sorted(self.layers.items()))))
        object.__setattr__(self, "links", MappingProxyType(dict(self.links)))

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.layer_names)

    def at(self, microbatch_size: int) -> tuple[LayerCosts, ...]:
        """Give the costs of every layer for microbatches of so many samples.

        Raises:
            UsageError: the profile has no such size.
        """
        if microbatch_size not in self.layers:
            raise UsageError(
                f"the profile has microbatches of {', '.join(map(str, self.layers))} samples, not "
                f"{microbatch_size}: profile that size too"
            )
        return self.layers[microbatch_size]

    def link_between(self, rank: int, other: int) -> Link:
        """Give the link between two ranks."""
        return self.links.get((min(rank, other), max(rank, other)), self.link)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_number(what: str, value: Any) -> None:
    if not (_is_number(value) and 0 <= value <= LARGEST):
        raise UsageError(f"{what} must be a number from 0 to 1e100, not {show_value(value)}")


def _require_kind(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"profile: {what} must be {kind.__name__}, not {show_value(value)}")
