"""How are matrix products split?

Shapes: x ``(..., k)``, right ``(k, n)``, dy ``(..., n)``; rows are all leading dimensions as one.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import (
    Source,
    autocast,
    is_rows,
    source_of,
    sources_of_bias,
)
from zerobubble.autograd.ops.base import ParameterSplit
from zerobubble.autograd.ops.batches import batched_matmul
from zerobubble.autograd.queue import WeightQueue


class MatmulSplit(ParameterSplit):
    """Split ``y = x @ right + bias``, right being the weight or its transpose."""

    def __init__(
        self,
        op: str,
        weight: Tensor,
        source: Source,
        *,
        transposed: bool,
        bias: Tensor | None = None,
        biases: tuple[Source, ...] = (),
    ) -> None:
        super().__init__(op, weight.shape, source, *biases)
        self.transposed = transposed
        self.bias_shape = () if bias is None else bias.shape
        # torch.mm gives the gradient of a column-major right operand as its transpose.
        self.by_columns = _is_row_major(weight) if transposed else _is_column_major(weight)

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        left, dy = _rows(x), _rows(dy)
        right_t = weight if self.transposed else weight.t()
        if _is_column_major(left):
            return right_t.t().mm(dy.t()).t().reshape(x.shape)
        dx = dy.mm(right_t)
        # A view would hold on to its base, and the queue would take dx for a shared tensor.
        return dx if x.dim() == 2 else dx.view(x.shape).data

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        left, dy_rows = _rows(x), _rows(dy)
        gradient = dy_rows.t().mm(left) if self.by_columns else left.t().mm(dy_rows)
        gradient = gradient if self.transposed is self.by_columns else gradient.t()
        return gradient, *self._bias_gradients(x, dy)

    def _bias_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        # torch.linear adds the bias inside the GEMM, to rows, only for such inputs.
        if len(self._sources) > 1 and (x.dim() == 2 or (x.dim() == 3 and x.is_contiguous())):
            dy = _rows(dy)
        return tuple(dy.sum_to_size(self.bias_shape) for _ in self._sources[1:])

    def add_to(self, gradient: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...] | None:
        if any(source.restore for source in self._sources) or gradient.dtype != dy.dtype:
            return None
        left, dy_rows = _rows(x), _rows(dy)
        (gradient.t() if self.transposed else gradient).addmm_(left.t(), dy_rows)
        return self._bias_gradients(x, dy)

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        return 2 * prod(y_shape[:-1]) * prod(self.weight_shape)


class _LeftMatmul(ParameterSplit):
    """Split ``y = weight @ x`` for matrices."""

    def __init__(self, weight: Tensor, source: Source) -> None:
        super().__init__("matmul", weight.shape, source)
        self.by_columns = _is_column_major(weight)

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return dy.t().mm(weight).t() if _is_column_major(x) else weight.t().mm(dy)

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        return (x.mm(dy.t()).t() if self.by_columns else dy.mm(x.t()),)

    def add_to(self, gradient: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...] | None:
        if self._sources[0].restore or gradient.dtype != dy.dtype:
            return None
        gradient.addmm_(dy, x.t())
        return ()

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        return 2 * y_shape[1] * prod(self.weight_shape)


def linear(op: Op, queue: WeightQueue, input: Any, weight: Any, bias: Any = None) -> Any:
    """Split ``F.linear``."""
    source, biases = source_of(weight, dim=2), sources_of_bias(bias)
    if source is None or biases is None or not is_rows(input):
        return NotImplemented
    split = MatmulSplit("linear", weight, source, transposed=True, bias=bias, biases=biases)
    x, weight, bias = autocast(input, weight, bias)
    return defer(op, x, (weight, bias), split, queue)


def matmul(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``x @ weight`` and ``weight @ x``, weight being one matrix or a batch of them."""
    if options or len(operands) != 2 or not all(map(is_rows, operands)):
        return NotImplemented
    left, right = operands
    if left.dim() > 2 and right.dim() > 2:
        return batched_matmul(queue, left, right)
    source = source_of(right, dim=2)
    if source is None:
        return _matmul_on_left(op, queue, left, right)
    split = MatmulSplit("matmul", right, source, transposed=False)
    x, weight = autocast(left, right)
    return defer(op, x, (weight,), split, queue)


def _matmul_on_left(op: Op, queue: WeightQueue, weight: Tensor, x: Tensor) -> Any:
    source = source_of(weight, dim=2)
    if source is None:
        return NotImplemented
    split: ParameterSplit
    if x.dim() == 2:
        split = _LeftMatmul(weight, source)
        x, weight = autocast(x, weight)
        return defer(lambda x, weight: op(weight, x), x, (weight,), split, queue)
    # torch.matmul folds the transposed batch into rows.
    split = MatmulSplit("matmul", weight, source, transposed=True)
    x, weight = autocast(x, weight)
    rows = x.mT.flatten(0, -2)
    y = defer(_times_transposed, rows, (weight,), split, queue)
    return y.view(*x.mT.shape[:-1], len(weight)).mT.contiguous()


def _times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    return x.mm(weight.t())


def addmm(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``torch.addmm(bias, x, weight)`` with a bias vector."""
    if options or len(operands) != 3:
        return NotImplemented
    bias, x, weight = operands
    source, biases = source_of(weight, dim=2), sources_of_bias(bias)
    if bias is None or bias.dim() != 1 or source is None or biases is None or not is_rows(x):
        return NotImplemented
    split = MatmulSplit("addmm", weight, source, transposed=False, bias=bias, biases=biases)
    x, weight, bias = autocast(x, weight, bias)
    return defer(partial(op, bias), x, (weight,), split, queue)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.flatten(0, -2)


def _is_column_major(x: Tensor) -> bool:
    return x.stride() == (1, x.shape[0])


def _is_row_major(x: Tensor) -> bool:
    return x.stride() == (x.shape[1], 1)
