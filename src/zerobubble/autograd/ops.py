"""How is each op on a parameter split: what does B compute, what is left for W?

An op is one handler plus one class: the handler says whether it can take a call, the class
computes the input gradient at B and, called, the parameter gradients at W. Both mirror the
formulas of ``torch``, down to the operand order of each GEMM, so results are bitwise equal.

Shapes: x ``(..., k)``, right ``(k, n)``, dy ``(..., n)``; rows are all leading dimensions as one.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import autocast, is_addable, is_dense, is_matrix, is_rows
from zerobubble.autograd.queue import WeightQueue

# linear, matmul, mm, addmm


class _Matmul:
    """Split ``y = x @ right + bias``, right being the weight or its transpose."""

    def __init__(self, op: str, weight: Parameter, bias: Any, *, transposed: bool) -> None:
        self.op = op
        self.transposed = transposed
        has_bias = bias is not None and bias.requires_grad
        self.parameters: tuple[Parameter, ...] = (weight, bias) if has_bias else (weight,)

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        left, dy = _rows(x), _rows(dy)
        right_t = weight if self.transposed else weight.t()
        if _is_column_major(left):
            return right_t.t().mm(dy.t()).t().reshape(x.shape)
        dx = dy.mm(right_t)
        # A view would hold on to its base, and the queue would take dx for a shared tensor.
        return dx if x.dim() == 2 else dx.view(x.shape).data

    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        left, dy_rows = _rows(x), _rows(dy)
        weight, *biases = self.parameters
        # torch.mm gives the gradient of a column-major right operand as its transpose.
        by_columns = _is_row_major(weight) if self.transposed else _is_column_major(weight)
        gradient = dy_rows.t().mm(left) if by_columns else left.t().mm(dy_rows)
        # torch.linear adds the bias inside the GEMM, to rows, only for such inputs.
        bias_in_gemm = x.dim() == 2 or (x.dim() == 3 and x.is_contiguous())
        dy_bias = dy_rows if bias_in_gemm else dy
        of_biases = (dy_bias.sum_to_size(bias.shape) for bias in biases)
        return gradient if self.transposed is by_columns else gradient.t(), *of_biases


def linear(op: Op, queue: WeightQueue, input: Any, weight: Any, bias: Any = None) -> Any:
    """Split ``F.linear``."""
    if not (is_matrix(weight) and is_rows(input) and is_addable(bias)):
        return NotImplemented
    split = _Matmul("linear", weight, bias, transposed=True)
    x, weight, bias = autocast(input, weight, bias)
    return defer(op, x, (weight, bias), split, queue)


def matmul(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``x @ weight``."""
    if options or len(operands) != 2 or not (is_matrix(operands[1]) and is_rows(operands[0])):
        return NotImplemented
    split = _Matmul("matmul", operands[1], None, transposed=False)
    x, weight = autocast(*operands)
    return defer(op, x, (weight,), split, queue)


def addmm(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``torch.addmm(bias, x, weight)`` with a bias vector."""
    if options or len(operands) != 3:
        return NotImplemented
    bias, x, weight = operands
    if not (is_matrix(weight) and is_rows(x) and is_addable(bias)):
        return NotImplemented
    split = _Matmul("addmm", weight, bias, transposed=False)
    x, weight, bias = autocast(x, weight, bias)
    return defer(partial(op, bias), x, (weight,), split, queue)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.flatten(0, -2)


def _is_column_major(x: Tensor) -> bool:
    return x.stride() == (1, x.shape[0])


def _is_row_major(x: Tensor) -> bool:
    return x.stride() == (x.shape[1], 1)


# embedding


class _Embedding:
    def __init__(self, weight: Parameter, padding_idx: int | None, by_freq: bool) -> None:
        self.op = "embedding"
        self.parameters: tuple[Parameter, ...] = (weight,)
        num = weight.shape[0]
        self.options = (num, -1 if padding_idx is None else padding_idx % num, by_freq)

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        raise AssertionError("indices have no gradient")

    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        return (torch.ops.aten.embedding_dense_backward(dy, x, *self.options),)


def embedding(
    op: Op,
    queue: WeightQueue,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Split ``F.embedding`` with a dense gradient and no renormalization."""
    if sparse or max_norm is not None or not (is_matrix(weight) and is_dense(input)):
        return NotImplemented
    split = _Embedding(weight, padding_idx, scale_grad_by_freq)
    operands = (weight, padding_idx, None, norm_type, scale_grad_by_freq, False)
    return defer(op, input, operands, split, queue)
