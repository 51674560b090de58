"""How is an embedding split? Indices have no gradient: everything but the lookup is left to W."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import Source, is_dense, source_of
from zerobubble.autograd.ops.base import ParameterSplit
from zerobubble.autograd.queue import WeightQueue


class EmbeddingSplit(ParameterSplit):
    """Split ``y = weight[x]``."""

    def __init__(
        self, weight: Tensor, source: Source, padding_idx: int | None, by_freq: bool
    ) -> None:
        super().__init__("embedding", weight.shape, source)
        num = weight.shape[0]
        self.options = (num, -1 if padding_idx is None else padding_idx % num, by_freq)

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        raise AssertionError("indices have no gradient")

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        return (torch.ops.aten.embedding_dense_backward(dy, x, *self.options),)

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        return 0


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
    source = source_of(weight, dim=2)
    if sparse or max_norm is not None or source is None or not is_dense(input):
        return NotImplemented
    split = EmbeddingSplit(weight, source, padding_idx, scale_grad_by_freq)
    operands = (weight.detach(), padding_idx, None, norm_type, scale_grad_by_freq, False)
    return defer(op, input, operands, split, queue)
