"""What does one stage do for F, B and W of a microbatch?"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from zerobubble.autograd import WeightQueue, deferring
from zerobubble.errors import UsageError
from zerobubble.runtime.boundary import Layout, flatten
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.loss_scaler import LossScaler
from zerobubble.runtime.partition import StageModule
from zerobubble.runtime.randomness import Randomness

_unsafe_view = torch.ops.aten._unsafe_view.default

LossFunction = Callable[[Any, Any], Tensor]


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
        self.targets: list[Any] = []
        self.loss: Tensor | None = None
        self.losses: dict[int, Tensor] = {}
        self.loss_scaler: LossScaler | None = None
        self._sizes: Sequence[int] = ()
        self._keywords: Sequence[dict[str, Any]] = ()
        self._inputs: dict[int, tuple[list[Tensor], Any]] = {}
        self._outputs: dict[int, tuple[list[Tensor], Layout]] = {}
        self._edges: dict[int, list[GradientEdge]] = {}
        self._gradients: dict[int, list[Tensor]] = {}
        self._queues: dict[int, WeightQueue] = {}

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
            entered = [_enter(tensor) if tensor.requires_grad else tensor for tensor in tensors]
        self._inputs[microbatch] = (leaves, layout.build(entered))

    def give_batch(self, microbatches: list[Any]) -> None:
        """Take the model's inputs: what the first stage reads."""
        self._inputs = {i: ([], value) for i, value in enumerate(microbatches)}

    def forward(self, microbatch: int) -> None:
        """Run F: compute the output, on the last stage the loss."""
        leaves, value = self._inputs[microbatch]
        self._inputs[microbatch] = (leaves, None)
        keywords = self._keywords[microbatch]
        batch = (
            None if self.number else value,
            self.targets[microbatch : microbatch + 1],
            keywords,
        )
        self.randomness.seed_forward(self.number, microbatch)
        watching = self.ledger.watching(self.module, batch)
        deferring = self._deferring(microbatch, new=True)
        with self.autocast(), watching, deferring, self.recomputing():
            output = self.module(value, **keywords)
            if self.loss_fn is not None:
                loss = self.loss_fn(output, self.targets[microbatch])
                output = self._add_loss(loss, microbatch)
        tensors, layout = flatten(output, f"the output of stage {self.number}")
        if torch.is_grad_enabled():
            self._edges[microbatch] = [_edge(t) for t in tensors if t.requires_grad]
        if self.loss_fn is None:
            self._outputs[microbatch] = ([t.detach().contiguous() for t in tensors], layout)
        elif torch.is_grad_enabled():
            self._gradients[microbatch] = [torch.ones_like(output)]
        self.ledger.end_op()

    def _trains(self, microbatch: int) -> bool:
        """Say whether anything in this stage or before it needs a gradient."""
        return bool(self._inputs[microbatch][0]) or any(
            parameter.requires_grad for parameter in self.module.parameters()
        )

    def _add_loss(self, loss: Any, microbatch: int) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            is_tensor = isinstance(loss, Tensor)
            what = f"one of shape {list(loss.shape)}" if is_tensor else f"a {type(loss).__name__}"
            raise UsageError(f"loss_fn must return a tensor with one value, not {what}")
        part = self._weigh(loss, microbatch)
        if torch.is_grad_enabled() and not part.requires_grad and self._trains(microbatch):
            raise UsageError("the loss has no graph: does loss_fn detach it?")
        self.loss = part.detach() if self.loss is None else self.loss + part.detach()
        self.losses[microbatch] = loss.detach()
        return part

    def _weigh(self, loss: Tensor, microbatch: int) -> Tensor:
        """Give the part of a microbatch in the loss of the batch."""
        size, smallest = self._sizes[microbatch], self._sizes[-1]
        if self.sums_losses:
            return loss
        if (
            smallest == self._sizes[0]
        ):  # not times 1/m: a plain script divides, which rounds otherwise
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
        if edges:
            with self._deferring(microbatch):
                _run_backward(edges, gradients)

    def take_input_gradients(self, microbatch: int) -> list[Tensor]:
        """Hand out the gradients of the inputs, once; zeros for an input that was not used."""
        leaves, _ = self._inputs.pop(microbatch)
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
        for held in (self._inputs, self._outputs, self._edges, self._gradients, self._queues):
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


def _enter(leaf: Tensor) -> Tensor:
    """Alias a boundary tensor, so that the first op of a stage may change it in place.

    To autograd the result is no view: in-place ops on views of a leaf are forbidden.
    """
    entered: Tensor = _unsafe_view(leaf, leaf.shape)
    return entered


def _run_backward(edges: list[GradientEdge], gradients: list[Tensor]) -> None:
    """Do what ``torch.autograd.backward`` does, which compares shapes symbolically first."""
    roots, keep_graph, create_graph = (tuple(edges), tuple(gradients)), False, False
    torch.autograd.Variable._execution_engine.run_backward(
        *roots, keep_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )
