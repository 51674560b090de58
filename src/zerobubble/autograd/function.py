"""How does one op run so that its backward stops at the input gradient?"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from zerobubble.autograd import native
from zerobubble.autograd.queue import WeightGradient, WeightQueue

Op = Callable[..., Any]

# A scalar input that needs a gradient keeps every split op in the graph, even if x needs none, and
# its node tells a backward() into the leaves from an autograd.grad() that must leave .grad alone.
ANCHOR = torch.zeros((), device="cpu", requires_grad=True)
ANCHOR_NODE = get_gradient_edge(ANCHOR).node


class Split(WeightGradient, Protocol):
    """The two halves of an op's backward."""

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        """Return the gradient of x, of the shape of x."""

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        """Count the operations of the GEMM or convolution in W, from the output's shape."""


class _Call(NamedTuple):
    """Operands that autograd must not see: a Parameter's hooks would fire at B, with nothing."""

    op: Op
    operands: tuple[Any, ...]
    split: Split
    queue: WeightQueue


def _refuse_double_backward(split: WeightGradient) -> None:
    raise RuntimeError(
        f"{split.op} on a parameter of shape {tuple(split.parameters[0].shape)} has no "
        "double backward while deferring: run this part of the model outside deferring(), "
        "or without create_graph=True"
    )


native.connect(ANCHOR, _refuse_double_backward)


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, call: _Call) -> Tensor:
        op, operands, ctx.split, ctx.queue = call
        # Detached: a parameter that is given other data later has its old data here.
        ctx.save_for_backward(x, operands[0].detach() if x.requires_grad else None)
        ctx.set_materialize_grads(False)
        y: Tensor = op(x, *operands)
        # A view made here would forbid in-place ops on the output; .data has no view relation.
        return y.data if y._is_view() else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None:
            return None, None, None
        split: Split = ctx.split
        if torch.is_grad_enabled():
            _refuse_double_backward(split)
        x, weight = ctx.saved_tensors
        if torch._C._will_engine_execute_node(ANCHOR_NODE):
            ctx.queue.push(split, x.detach(), dy)
        return (None if weight is None else split.input_gradient(x, weight, dy)), None, None


_NODE_NAME = "_DeferredBackward"

# Function.apply first looks for tensors left over from functorch transforms, at twice the cost.
_apply = super(torch.autograd.Function, _Deferred).apply


def defer(op: Op, x: Tensor, operands: tuple[Any, ...], split: Split, queue: WeightQueue) -> Tensor:
    """Return ``op(x, *operands)``, operands[0] being the weight, with its backward split in two.

    B computes the gradient of x and pushes the gradients of ``split.parameters`` on the queue.
    Raises RuntimeError at a double backward.
    """
    y = native.defer(op, x, operands, split, queue)
    if y is None:
        call = _Call(op, operands, split, queue)
        y = cast(Tensor, _apply(x, ANCHOR, call))  # type: ignore[no-untyped-call]
    return y


def split_of(node: Any) -> Split | None:
    """Return how the op behind a node of the autograd graph is split; None for other nodes."""
    split: Split | None = getattr(node, "split", None) if node.name() == _NODE_NAME else None
    return split
