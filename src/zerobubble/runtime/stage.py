"""What does one stage do for the ops of a microbatch?"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, increment_version

from zerobubble.autograd import WeightQueue, deferring
from zerobubble.errors import UsageError
from zerobubble.runtime.boundary import Layout, enter, flatten
from zerobubble.runtime.ledger import Ledger, tensors_given
from zerobubble.runtime.loss_scaler import LossScaler
from zerobubble.runtime.offload import Offloading
from zerobubble.runtime.offload.parcel import Parcel
from zerobubble.runtime.offload.shared import SharedStorages
from zerobubble.runtime.partition import StageModule
from zerobubble.runtime.randomness import Randomness
from zerobubble.runtime.repeat import ChangedBuffers, Repeat, saving_nothing

LossFunction = Callable[[Any, Any], Tensor]


class _Given(NamedTuple):
    """What F of one microbatch reads; the targets are a list of one, on the last stage."""

    value: Any
    targets: Sequence[Any]
    keywords: dict[str, Any]


class Stage:
    """A slice of the model and what it holds for the microbatches in flight.

    The graph of a microbatch is cut at the boundaries: inputs are leaves, and of the outputs only
    the graph edges are kept, so that their memory goes as soon as they have been sent.

    Args:
        number: of the stage, in forward order.
        module: its layers.
        splits_backward: whether W runs apart from B, so that weight gradients are deferred.
        loss_fn: on the last stage, maps output and target of a microbatch to a scalar.
        sums_losses: whether the loss of a batch is the sum over its microbatches, not their mean.
        autocast: gives the context of the forward, for mixed precision.
        recomputing: gives the context of the forward that leaves some of its work to B.
        ledger: watches the memory of the rank.
        randomness: seeds F; None leaves the generators as they are.
        offloading: where activations go; needed for a schedule that offloads some.

    Attributes:
        offloaded: the microbatches of which O and L run.
        repeated: the microbatches of which R runs.
    """

    def __init__(
        self,
        number: int,
        module: StageModule,
        *,
        splits_backward: bool = False,
        loss_fn: LossFunction | None = None,
        sums_losses: bool = False,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        recomputing: Callable[[], AbstractContextManager[Any]] = nullcontext,
        ledger: Ledger | None = None,
        randomness: Randomness | None = None,
        offloading: Offloading | None = None,
    ) -> None:
        self.number = number
        self.module = module
        self.splits_backward = splits_backward
        self.loss_fn = loss_fn
        self.sums_losses = sums_losses
        self.autocast = autocast
        self.recomputing = recomputing
        self.ledger = ledger or Ledger()
        self.randomness = randomness or Randomness(0, torch.device("cpu"))
        self.offloading = offloading
        self.offloaded = self.repeated = frozenset[int]()
        self.targets: list[Any] = []
        self.loss: Tensor | None = None
        self.losses: dict[int, Tensor] = {}
        self.loss_scaler: LossScaler | None = None
        self._sizes: Sequence[int] = ()
        self._keywords: Sequence[dict[str, Any]] = ()
        self._inputs: dict[int, tuple[list[Tensor], Any]] = {}
        self._entered: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._outputs: dict[int, tuple[list[Tensor], Layout]] = {}
        self._edges: dict[int, list[GradientEdge]] = {}
        self._gradients: dict[int, list[Tensor]] = {}
        self._queues: dict[int, WeightQueue] = {}
        self._parcels: dict[int, Parcel] = {}
        self._shared = SharedStorages()
        self._repeats: dict[int, Repeat] = {}
        self._changed_buffers = ChangedBuffers(module)

    def begin(self, sizes: Sequence[int], keywords: Sequence[dict[str, Any]]) -> None:
        """Begin a step: take the number of samples and the keywords of every microbatch."""
        self._sizes, self._keywords = sizes, keywords

    def give_input(self, microbatch: int, tensors: list[Tensor], layout: Layout) -> None:
        """Take the output of the stage before: its tensors, outside any graph, become leaves."""
        leaves, entered = [], tensors
        if torch.is_grad_enabled():
            for tensor, spec in zip(tensors, layout.tensors, strict=True):
                tensor.requires_grad_(spec.requires_grad)
            leaves = [tensor for tensor in tensors if tensor.requires_grad]
            entered = [enter(tensor) if tensor.requires_grad else tensor for tensor in tensors]
            pairs = zip(tensors, entered, strict=True)
            self._entered[microbatch] = [
                (leaf, alias) for leaf, alias in pairs if leaf is not alias
            ]
        self._inputs[microbatch] = (leaves, layout.build(entered))

    def give_batch(self, microbatches: list[Any]) -> None:
        """Take the model's inputs: what the first stage reads."""
        self._inputs = {i: ([], value) for i, value in enumerate(microbatches)}

    def forward(self, microbatch: int) -> None:
        """Run F: compute the output, on the last stage the loss."""
        leaves, value = self._inputs[microbatch]
        self._inputs[microbatch] = (leaves, None)
        given = _Given(value, self.targets[microbatch : microbatch + 1], self._keywords[microbatch])
        is_repeated = microbatch in self.repeated and torch.is_grad_enabled()
        if is_repeated:
            output, loss = self._compute_at_first(microbatch, given)
        else:
            output, loss = self._compute(microbatch, given, self._watching(microbatch, given))
        if loss is not None:
            self._count_loss(microbatch, output, loss)
        tensors, layout = flatten(output, f"the output of stage {self.number}")
        if torch.is_grad_enabled() and not is_repeated:
            self._edges[microbatch] = [_edge(t) for t in tensors if t.requires_grad]
        if self.loss_fn is None:
            self._outputs[microbatch] = ([t.detach().contiguous() for t in tensors], layout)
        elif torch.is_grad_enabled():
            self._gradients[microbatch] = [torch.ones_like(output)]
        if parcel := self._parcels.get(microbatch):
            parcel.send()
        self.ledger.end_op()

    def _compute(
        self, microbatch: int, given: _Given, watching: AbstractContextManager[Any]
    ) -> tuple[Any, Tensor | None]:
        """Compute the output or, on the last stage, its part in the loss of the batch and its own.

        ``watching`` sees what the graph saves.
        """
        self.randomness.seed_forward(self.number, microbatch)
        deferring = self._deferring(microbatch, new=True)
        with self.autocast(), watching, deferring, self.recomputing():
            output = self.module(given.value, **given.keywords)
            self._tell_changed_inputs(microbatch)
            if self.loss_fn is None:
                return output, None
            loss = self.loss_fn(output, given.targets[0])
            return self._part_of_batch(loss, microbatch), loss.detach()

    def _tell_changed_inputs(self, microbatch: int) -> None:
        """Let autograd know what F has changed in place: on this rank, another stage may need it.

        Aliases have version counters of their own, and leaves those of the other stage's output.
        """
        for leaf, alias in self._entered.get(microbatch, ()):
            if alias._version:
                increment_version(leaf)

    def _watching(self, microbatch: int, given: _Given) -> AbstractContextManager[Any]:
        """Watch what the graph saves and, if the microbatch is offloaded, put it into a parcel."""
        batch, parcel = self._batch(given), None
        if microbatch in self.offloaded and torch.is_grad_enabled():
            assert self.offloading is not None, "the pipeline gives it to all stages"
            leaves, _ = self._inputs[microbatch]
            others = chain(tensors_given(self.module, batch), leaves)
            parcel = self._parcels[microbatch] = self.offloading.parcel(others, self._shared)
        return self.ledger.watching(self.module, batch, parcel)

    def _batch(self, given: _Given) -> _Given:
        """Leave of what F reads what the user has given."""
        return given if self.number == 0 else given._replace(value=None)

    def _compute_at_first(self, microbatch: int, given: _Given) -> tuple[Any, Tensor | None]:
        """Compute without a graph to go back through: R makes that one."""
        self._repeats[microbatch] = repeat = Repeat(given, self._changed_buffers)
        found = self._compute(microbatch, repeat.copies(), saving_nothing())
        repeat.end_first()
        self.ledger.exclude(tensors_given(self.module, self._batch(given)))
        self.ledger.track_activations(repeat.tensors())
        return found

    def repeat(self, microbatch: int) -> None:
        """Run R: compute the output once more, for its graph."""
        repeat = self._repeats.pop(microbatch)
        with repeat.begun():
            watching = self._watching(microbatch, repeat.given)
            output, _ = self._compute(microbatch, repeat.given, watching)
        tensors, _ = flatten(output, f"the output of stage {self.number}")
        self._edges[microbatch] = [_edge(t) for t in tensors if t.requires_grad]
        del repeat
        self.ledger.end_op()

    def offload(self, microbatch: int) -> None:
        """Run O: let go of the device memory of what F has saved and the copy has taken away."""
        self._parcels[microbatch].drop()
        self.ledger.end_op()

    def load(self, microbatch: int) -> None:
        """Run L: take device memory again and begin to copy back."""
        self.ledger.track_activations(self._parcels[microbatch].fetch())
        self.ledger.end_op()

    def _trains(self, microbatch: int) -> bool:
        """Say whether anything in this stage or before it needs a gradient."""
        return bool(self._inputs[microbatch][0]) or any(
            parameter.requires_grad for parameter in self.module.parameters()
        )

    def _part_of_batch(self, loss: Any, microbatch: int) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            is_tensor = isinstance(loss, Tensor)
            what = f"one of shape {list(loss.shape)}" if is_tensor else f"a {type(loss).__name__}"
            raise UsageError(f"loss_fn must return a tensor with one value, not {what}")
        part = self._weigh(loss, microbatch)
        if torch.is_grad_enabled() and not part.requires_grad and self._trains(microbatch):
            raise UsageError("the loss has no graph: does loss_fn detach it?")
        return part

    def _count_loss(self, microbatch: int, part: Tensor, loss: Tensor) -> None:
        self.loss = part.detach() if self.loss is None else self.loss + part.detach()
        self.losses[microbatch] = loss

    def _weigh(self, loss: Tensor, microbatch: int) -> Tensor:
        """Give the part of a microbatch in the loss of the batch."""
        size, smallest = self._sizes[microbatch], self._sizes[-1]
        if self.sums_losses:
            return loss
        if smallest == self._sizes[0]:  # not times 1/m: a plain script divides, which rounds else
            return loss / len(self._sizes)
        return loss * (size / sum(self._sizes))

    def take_output(self, microbatch: int) -> tuple[list[Tensor], Layout]:
        """Hand out the output of F, once, for the stage after."""
        return self._outputs.pop(microbatch)

    def give_gradients(self, microbatch: int, gradients: list[Tensor]) -> None:
        """Take the gradients of those outputs that need one."""
        self._gradients[microbatch] = gradients

    def backward_input(self, microbatch: int) -> None:
        """Run B: compute the gradients of the inputs, and those of the parameters not deferred."""
        self._run_b(microbatch)
        self.ledger.end_op(self._queues.get(microbatch))

    def _run_b(self, microbatch: int) -> None:
        edges, gradients = self._edges.pop(microbatch), self._gradients.pop(microbatch, [])
        if self.loss_fn is not None and self.loss_scaler is not None:
            gradients = [gradient * self.loss_scaler.scale for gradient in gradients]
        if parcel := self._parcels.pop(microbatch, None):
            parcel.arrive()
            del parcel  # so that memory goes as the backward proceeds
        if edges:
            with self._deferring(microbatch):
                _run_backward(edges, gradients)

    def take_input_gradients(self, microbatch: int) -> list[Tensor]:
        """Hand out the gradients of the inputs, once; zeros for an input that was not used."""
        leaves, _ = self._inputs.pop(microbatch)
        self._entered.pop(microbatch, None)
        return [
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()
            for leaf in leaves
        ]

    def backward_weight(self, microbatch: int) -> None:
        """Run W: add the deferred parameter gradients to ``.grad``."""
        self._run_w(microbatch)
        self.ledger.end_op()

    def _run_w(self, microbatch: int) -> None:
        if queue := self._queues.pop(microbatch):
            queue.run()

    def backward(self, microbatch: int) -> None:
        """Run BW: both parts at once."""
        self._run_b(microbatch)
        if self.splits_backward:
            self._run_w(microbatch)
        self.ledger.end_op()

    def reset(self) -> None:
        """Forget everything about the microbatches of the step."""
        self.targets, self.loss, self.losses, self._keywords = [], None, {}, ()
        for parcel in self._parcels.values():
            parcel.abandon()
        for held in (
            self._inputs,
            self._entered,
            self._outputs,
            self._edges,
            self._gradients,
            self._queues,
            self._parcels,
            self._repeats,
        ):
            held.clear()

    def _deferring(self, microbatch: int, new: bool = False) -> AbstractContextManager[Any]:
        if not (self.splits_backward and torch.is_grad_enabled()):
            return nullcontext()
        if new:
            self._queues[microbatch] = WeightQueue()
        return deferring(self._queues[microbatch])


@contextmanager
def in_evaluation_mode(stages: Iterable[Stage]) -> Iterator[None]:
    """Let all modules be in evaluation mode meanwhile, and in their own modes again afterwards."""
    modules = [module for stage in stages for module in stage.module.modules()]
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _edge(output: Tensor) -> GradientEdge:
    node = output.grad_fn
    return get_gradient_edge(output) if node is None else GradientEdge(node, output.output_nr)


def _run_backward(edges: list[GradientEdge], gradients: list[Tensor]) -> None:
    """Do what ``torch.autograd.backward`` does, which compares shapes symbolically first."""
    roots, keep_graph, create_graph = (tuple(edges), tuple(gradients)), False, False
    torch.autograd.Variable._execution_engine.run_backward(
        *roots, keep_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )
