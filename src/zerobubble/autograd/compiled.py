"""How does a W item leave code that torch.compile has made?

While compiling, the patched ops of ``intercept.py`` run on an alias of the weight, so that the
graph has no gradient for the Parameter itself. Their backward computes the gradients of input and
bias where the compiler sees them, and calls the custom op ``zerobubble::stash``, which pushes what
W needs on a queue; ``address.py`` says on which.

A bias keeps its gradient in B: the sum is fused into the kernel that makes the output gradient.
Tensor methods (``x @ weight``, ``x.mm(weight)``) stay in B, because dynamo does not look them up;
``split_report`` says so.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from zerobubble.autograd import address
from zerobubble.autograd.function import ANCHOR, ANCHOR_NODE, Op, Split
from zerobubble.autograd.operands import Source, is_dense, is_rows
from zerobubble.autograd.ops.embedding import EmbeddingSplit, embedding
from zerobubble.autograd.ops.matmul import MatmulSplit, addmm, linear, matmul

# The custom op, run by the backward of a compiled graph


class _Matmul(MatmulSplit):
    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        # Compiled code casts a weight once per use, so uses are summed in the weight's precision.
        return (super().__call__(x, dy)[0].to(self.parameters[0].dtype),)


def _split_of(op: str, weight: Parameter, options: list[int]) -> Split:
    if op == "embedding":
        padding_idx, by_freq = options
        return EmbeddingSplit(
            weight, Source(weight), padding_idx if padding_idx >= 0 else None, bool(by_freq)
        )
    return _Matmul(op, weight, Source(weight), transposed=op == "linear")


def _stash(
    x: Tensor, dy: Tensor, parameter: Tensor, queue: Tensor, op: str, options: list[int]
) -> Tensor:
    """Push the W of one op; return the gradient of the anchor."""
    weight, owner = address.parameters.find(parameter), address.queues.find(queue)
    if weight is not None and torch._C._will_engine_execute_node(ANCHOR_NODE):
        split = _split_of(op, weight, options)
        if owner is None:
            torch.autograd.backward((weight,), split(x, dy))
        else:
            # The graph writes its next results into the memory of x and dy.
            owner.push(split, x.clone(), dy.clone())
    return torch.zeros((), device="cpu")


def _fake_stash(*operands: object) -> Tensor:
    return torch.empty((), device="cpu")


_library: Any = torch.library.Library("zerobubble", "DEF")  # type: ignore[no-untyped-call]


def _why_unavailable() -> str | None:
    """Define the op as effectful: no pass may drop it, merge two of them or change their order."""
    try:
        from torch._library.effects import EffectType

        _library.define(
            "stash(Tensor x, Tensor dy, Tensor parameter, Tensor queue, str op, int[] options)"
            " -> Tensor",
            tags=(torch.Tag.cudagraph_unsafe, torch.Tag.needs_exact_strides),
        )
        _library.impl("stash", _stash, "CompositeExplicitAutograd")
        torch.library.register_fake("zerobubble::stash", _fake_stash, lib=_library)
        _library._register_effectful_op("zerobubble::stash", EffectType.ORDERED)
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} cannot register an effectful op ({error})"
    return None


_unavailable = _why_unavailable()


# What dynamo traces in place of an op on a Parameter


def _addmm_last(x: Tensor, weight: Tensor, bias: Tensor, addmm: Op = torch.addmm) -> Any:
    return addmm(bias, x, weight)


_FORWARD: dict[str, Op] = {"linear": F.linear, "matmul": torch.matmul, "addmm": _addmm_last}
_NO_WEIGHT = Parameter(torch.empty(0, 0, device="cpu"))
_SPLIT = {
    op: MatmulSplit(op, _NO_WEIGHT, Source(_NO_WEIGHT), transposed=op == "linear")
    for op in _FORWARD
}


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, op: str, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor,
        parameter: Tensor, queue: Tensor,
    ) -> Any:  # fmt: skip
        ctx.save_for_backward(x, weight, parameter, queue)
        ctx.op, ctx.num_biases = op, 0 if bias is None else bias.numel()
        y = _FORWARD[op](x, weight) if bias is None else _FORWARD[op](x, weight, bias)
        # A view made here would forbid in-place ops on the output.
        return torch.ops.aten._unsafe_view(y, y.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, parameter, queue = ctx.saved_tensors
        token = torch.ops.zerobubble.stash(x, dy, parameter, queue, ctx.op, [])
        dx = _SPLIT[ctx.op].input_gradient(x, weight, dy) if ctx.needs_input_grad[1] else None
        dbias = dy.flatten(0, -2).sum_to_size(ctx.num_biases) if ctx.needs_input_grad[3] else None
        return None, dx, None, dbias, token, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, anchor: Tensor, parameter: Tensor, queue: Tensor,
        padding_idx: int, by_freq: bool,
    ) -> Any:  # fmt: skip
        ctx.save_for_backward(x, parameter, queue)
        ctx.options = (padding_idx, int(by_freq))
        return torch.embedding(weight, x, padding_idx, by_freq, False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, parameter, queue = ctx.saved_tensors
        token = torch.ops.zerobubble.stash(x, dy, parameter, queue, "embedding", ctx.options)
        return None, None, token, None, None, None, None


def _address(weight: Any) -> Any:
    """Return the address of a matrix that can be deferred here, or None."""
    if (
        _unavailable is not None
        or torch.compiler.is_exporting()
        or not torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or type(weight) is not Parameter
        or weight.dim() != 2
    ):
        return None
    return weight._zerobubble_address  # type: ignore[attr-defined]


def _product(op: str, x: Any, weight: Any, bias: Any) -> Any:
    if not is_rows(x) or not (bias is None or (is_dense(bias) and bias.dim() == 1)):
        return NotImplemented
    found = _address(weight)
    if found is None:
        return NotImplemented
    alias, parameter, queue = found
    x, alias, bias = _autocast(x, alias, bias)
    operands = (op, x, alias, bias, ANCHOR, parameter, queue)
    return _Product.apply(*operands)  # type: ignore[no-untyped-call]


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return _product("linear", input, weight, bias)


def _matmul(*operands: Any, **options: Any) -> Any:
    if options or len(operands) != 2:
        return NotImplemented
    return _product("matmul", *operands, None)


def _addmm(*operands: Any, **options: Any) -> Any:
    if options or len(operands) != 3:
        return NotImplemented
    bias, x, weight = operands
    return _product("addmm", x, weight, bias)


def _embedding(
    input: Any, weight: Any, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    found = None if sparse or max_norm is not None or not is_dense(input) else _address(weight)
    if found is None:
        return NotImplemented
    alias, parameter, queue = found
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    operands = (input, alias, ANCHOR, parameter, queue, padding, scale_grad_by_freq)
    return _Embedding.apply(*operands)  # type: ignore[no-untyped-call]


def _autocast(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *others
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        t if t is None or not t.is_floating_point() or t.dtype == torch.float64 else t.to(dtype)
        for t in (x, *others)
    )


_HANDLERS: dict[Op, Op] = {
    linear: _linear,
    matmul: _matmul,
    addmm: _addmm,
    embedding: _embedding,
}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _say_once(op: str) -> None:
    """Warn, while compiling, that a kind of op is not deferred in compiled code."""
    reason = _unavailable or "it has no custom op"
    message = f"{op}: compiled code keeps its parameter gradients in B, because {reason}"
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=2)


_said: set[str] = set()


def traced(name: str, handler: Op) -> Op:
    """Return what a call that ``handler`` takes in eager code does while torch compiles it."""
    compiled_handler = _HANDLERS.get(handler)

    def call(op: Op, *args: Any, **kwargs: Any) -> Any:
        if compiled_handler is None or _unavailable is not None:
            _say_once(name)
            return op(*args, **kwargs)
        out = compiled_handler(*args, **kwargs)
        return op(*args, **kwargs) if out is NotImplemented else out

    return call
