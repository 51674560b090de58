"""How is the product of groups of rows, each with a matrix of its own, split?

Shapes: x ``(n, k)``, weight ``(g, k, m)``, dy ``(n, m)``; ``offs[i]`` is where the rows of group i
end. A mixture of experts is such a product, an expert being a group.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import Source, is_dense, source_of
from zerobubble.autograd.ops.base import ParameterSplit
from zerobubble.autograd.queue import WeightQueue


class _GroupedMatmul(ParameterSplit):
    """Split ``y = grouped_mm(x, weight, offs=offs)``."""

    def __init__(self, weight: Tensor, offs: Tensor, source: Source) -> None:
        super().__init__("grouped_mm", weight.shape, source)
        self.offs, self.offs_version = offs, offs._version
        self.by_columns = weight.stride(1) == 1 and weight.stride(2) == weight.shape[1]

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        self._check_offs("B")
        if x.stride() == (1, x.shape[0]):
            return torch._grouped_mm(weight, dy.t(), self.offs).t()
        return torch._grouped_mm(dy, weight.mT, self.offs)

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        self._check_offs("W")
        if self.by_columns:
            return (torch._grouped_mm(dy.t(), x, self.offs).mT,)
        return (torch._grouped_mm(x.t(), dy, self.offs),)

    def _check_offs(self, part: str) -> None:
        if self.offs._version != self.offs_version:
            raise RuntimeError(
                f"{part} of grouped_mm: offs of shape {tuple(self.offs.shape)} was modified in "
                f"place after F (version {self.offs._version}, expected {self.offs_version}): run "
                f"{part} before the modification, or modify a clone"
            )

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        _, num_inputs, num_outputs = self.weight_shape
        return 2 * y_shape[0] * num_inputs * num_outputs


def grouped_mm(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``F.grouped_mm`` of rows with a batch of matrices; autocast leaves it as it is."""
    if len(operands) != 2 or options.keys() != {"offs"}:
        return NotImplemented
    x, weight = operands
    source = source_of(weight, dim=3)
    if source is None or not is_dense(x) or x.dim() != 2:
        return NotImplemented
    split = _GroupedMatmul(weight, options["offs"], source)
    return defer(lambda x, weight: op(x, weight, **options), x, (weight.detach(),), split, queue)
