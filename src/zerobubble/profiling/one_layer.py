"""What does one layer do as a stage of its own: F, B and W of a microbatch, and what it holds?"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, UntypedStorage, nn

from zerobubble.errors import UsageError
from zerobubble.runtime.boundary import Layout
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.partition import StageModule
from zerobubble.runtime.stage import LossFunction, Stage


@dataclass(frozen=True)
class Boundary:
    """What a layer reads: the output of the layer before it, or the model's input.

    Attributes:
        tensors: outside any graph.
        layout: how they are put together.
    """

    tensors: tuple[Tensor, ...]
    layout: Layout

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def signature(self) -> str:
        """What the cost of a layer can depend on."""
        return f"{self.layout.tree} {self.layout}"

    def copy(self) -> list[Tensor]:
        """Make tensors of the same values with memory of their own, as a receive does."""
        return [tensor.clone() for tensor in self.tensors]


@dataclass(frozen=True)
class LayerRun:
    """One layer and what it is run on.

    Attributes:
        number: of the layer.
        num_samples: in the microbatch.
        boundary: what it reads.
        loss_fn: of the last layer; None for others.
        target: of the microbatch, for the last layer.
        autocast: gives the context of the forward, for mixed precision.
    """

    number: int
    num_samples: int
    boundary: Boundary
    loss_fn: LossFunction | None = None
    target: Any = None
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext


class LayerStage:
    """A stage of one layer that runs one microbatch at a time, or several in flight."""

    def __init__(
        self,
        module: nn.Module,
        task: LayerRun,
        *,
        splits_backward: bool,
        num_in_flight: int = 1,
    ) -> None:
        self.task = task
        self.ledger = Ledger()
        self.stage = Stage(
            task.number,
            StageModule({task.number: module}),
            splits_backward=splits_backward,
            loss_fn=task.loss_fn,
            autocast=task.autocast,
            ledger=self.ledger,
        )
        self.stage.begin([task.num_samples] * num_in_flight, [{}] * num_in_flight)
        if task.loss_fn is not None:
            self.stage.targets = [task.target] * num_in_flight
        self._num_in_flight = num_in_flight

    def give_input(self, microbatch: int, tensors: list[Tensor]) -> None:
        """Take the input of a microbatch; the first layer reads a batch with the first one."""
        layout = self.task.boundary.layout
        if self.task.number:
            self.stage.give_input(microbatch, tensors, layout)
        elif microbatch == 0:
            self.stage.give_batch([layout.build(tensors)] * self._num_in_flight)

    def take_output(self, microbatch: int) -> tuple[list[Tensor], Layout | None]:
        """Hand out the output of F; none of the last layer, whose output is the loss."""
        if self.stage.loss_fn is not None:
            return [], None
        return self.stage.take_output(microbatch)

    def give_gradients(self, microbatch: int, layout: Layout | None) -> None:
        """Take gradients of the output; the last layer has its own."""
        if layout is not None:
            device = next((t.device for t in self.task.boundary.tensors), torch.device("cpu"))
            self.stage.give_gradients(
                microbatch,
                [torch.ones(s.shape, dtype=s.dtype, device=device) for s in layout.gradients],
            )

    def end(self, microbatch: int) -> None:
        """Drop the gradients of the input, and the input."""
        self.stage.take_input_gradients(microbatch)

    def begin_gradients(self) -> None:
        """Give the parameters gradients to add to, as all microbatches but the first find them."""
        for parameter in self.stage.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def drop_gradients(self) -> None:
        """Set the gradients of the parameters to None."""
        for parameter in self.stage.module.parameters():
            parameter.grad = None


@dataclass(frozen=True)
class Held:
    """Bytes that a microbatch holds on to, and what the layer gives; see ``LayerCosts``."""

    activation_bytes: int
    kept_bytes: int
    saved_input_bytes: int
    kept_input_bytes: int
    output: Boundary | None

    @property
    def output_bytes(self) -> int:
        """What travels to the next layer; 0 after the last one."""
        return self.output.num_bytes if self.output else 0

    def as_costs(self, task: LayerRun) -> dict[str, int]:
        """Give the fields of ``LayerCosts``."""
        return {
            "activation_bytes": self.activation_bytes,
            "kept_bytes": self.kept_bytes,
            "input_bytes": task.boundary.num_bytes,
            "saved_input_bytes": self.saved_input_bytes,
            "kept_input_bytes": self.kept_input_bytes,
            "output_bytes": self.output_bytes,
        }


def count_held(module: nn.Module, task: LayerRun) -> Held:
    """Run one microbatch and count what the runtime's ledger counts, the layer's input apart.

    Raises:
        UsageError: the layer returns something that cannot travel.
    """
    run = LayerStage(module, task, splits_backward=True)
    run.ledger.is_on = True
    inputs = task.boundary.copy()
    storages = [(ref(tensor.untyped_storage()), tensor.nbytes) for tensor in inputs]
    run.give_input(0, inputs)
    run.stage.forward(0)
    saved = sum(tensor.nbytes for tensor in inputs if run.ledger.activations.holds(tensor))
    after_f = run.ledger.activations.live_bytes()
    del inputs
    tensors, layout = run.take_output(0)
    if layout is not None and not tensors:
        raise UsageError(
            "its forward returns no tensor: return what the next layer reads, and what the loss "
            "follows from"
        )
    output = None if layout is None else Boundary(tuple(t.clone() for t in tensors), layout)
    del tensors
    run.give_gradients(0, layout)
    run.stage.backward_input(0)
    run.end(0)
    after_b = run.ledger.activations.live_bytes()
    kept_input = sum(size for storage, size in storages if _is_alive(storage)) if saved else 0
    run.stage.backward_weight(0)
    run.drop_gradients()
    return Held(after_f - saved, after_b - kept_input, saved, kept_input, output)


def _is_alive(storage: "ref[UntypedStorage]") -> bool:
    return storage() is not None
