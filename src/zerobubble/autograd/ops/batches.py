"""How are products of batches of matrices split?

Shapes: left ``(b, n, k)``, right ``(b, k, m)``, dy ``(b, n, m)``; one of left and right is the
weight, the other one is x.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import Source, autocast, is_dense, source_of, sources_of_bias
from zerobubble.autograd.ops.base import ParameterSplit
from zerobubble.autograd.queue import WeightQueue


class _BatchedMatmul(ParameterSplit):
    """Split ``y = x @ weight + bias``, or ``y = weight @ x``."""

    def __init__(
        self,
        op: str,
        weight_shape: Sequence[int],
        source: Source,
        *,
        on_left: bool,
        biases: tuple[Source, ...] = (),
        bias_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(op, weight_shape, source, *biases)
        self.on_left = on_left
        self.bias_shape = bias_shape

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return weight.mT.bmm(dy) if self.on_left else dy.bmm(weight.mT)

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        gradient = dy.bmm(x.mT) if self.on_left else x.mT.bmm(dy)
        return gradient, *(self._bias_gradient(dy) for _ in self._sources[1:])

    def _bias_gradient(self, dy: Tensor) -> Tensor:
        # Not dy itself: others may own it.
        return dy.clone() if dy.shape == self.bias_shape else dy.sum_to_size(self.bias_shape)

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        return 2 * y_shape[2 if self.on_left else 1] * prod(self.weight_shape)


def split_bmm(
    name: str, queue: WeightQueue, x: Tensor, weight: Tensor, source: Source, *, on_left: bool
) -> Any:
    """Return ``x @ weight``, or ``weight @ x``, of batches with its backward split in two."""
    split = _BatchedMatmul(name, weight.shape, source, on_left=on_left)
    x, weight = autocast(x, weight)
    op = (lambda x, weight: torch.bmm(weight, x)) if on_left else torch.bmm
    return defer(op, x, (weight,), split, queue)


def bmm(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``torch.bmm`` with the weight on either side."""
    if options or len(operands) != 2 or not all(is_dense(x) and x.dim() == 3 for x in operands):
        return NotImplemented
    for on_left in (False, True):
        weight, x = operands if on_left else reversed(operands)
        source = source_of(weight)
        if source is not None:
            return split_bmm("bmm", queue, x, weight, source, on_left=on_left)
    return NotImplemented


def baddbmm(op: Op, queue: WeightQueue, *operands: Any, **options: Any) -> Any:
    """Split ``torch.baddbmm(bias, x, weight)`` with a constant or trainable bias."""
    if options or len(operands) != 3 or not all(map(is_dense, operands)):
        return NotImplemented
    bias, x, weight = operands
    source, biases = source_of(weight, dim=3), sources_of_bias(bias, max_dim=3)
    if source is None or biases is None or x.dim() != 3:
        return NotImplemented
    split = _BatchedMatmul(
        "baddbmm", weight.shape, source, on_left=False, biases=biases, bias_shape=bias.shape
    )
    x, weight, bias = autocast(x, weight, bias)
    return defer(lambda x, weight: op(bias, x, weight), x, (weight,), split, queue)


def batched_matmul(queue: WeightQueue, left: Tensor, right: Tensor) -> Any:
    """Split ``left @ right`` of equal leading dimensions, as the bmm that torch.matmul runs."""
    if left.shape[:-2] != right.shape[:-2] or not (source_of(left) or source_of(right)):
        return NotImplemented
    batch = left.shape[:-2]
    flat = [t if t.dim() == 3 else t.reshape(prod(batch), *t.shape[-2:]) for t in (left, right)]
    y = bmm(torch.bmm, queue, *flat)
    return y if y is NotImplemented or len(batch) == 1 else y.unflatten(0, batch)
