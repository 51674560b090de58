"""How is a convolution split? By the output mask of torch's own backward."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zerobubble.autograd.function import Op, defer
from zerobubble.autograd.operands import Source, autocast, is_dense, source_of, sources_of_bias
from zerobubble.autograd.ops.base import ParameterSplit
from zerobubble.autograd.queue import WeightQueue

Sizes = int | Sequence[int]


class _Geometry(NamedTuple):
    """Arguments of ``torch.convolution`` after the tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class _Convolution(ParameterSplit):
    """Split ``y = convolution(x, weight) + bias``."""

    def __init__(
        self,
        weight: Tensor,
        x: Tensor,
        source: Source,
        biases: tuple[Source, ...],
        geometry: _Geometry,
    ) -> None:
        op = "conv_transpose" if geometry.transposed else "conv"
        super().__init__(op, weight.shape, source, *biases)
        self.weight = weight.detach()
        self.dtype = x.dtype
        self.num_positions = x.shape[0] * prod(x.shape[2:])
        self.geometry = geometry

    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return self._backward(x, weight, dy, [True, False, False])[0]

    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        # Only sizes and strides of the weight matter here: a copy of another dtype is not kept.
        weight = self.weight.to(self.dtype)
        has_bias = len(self._sources) > 1
        return self._backward(x, weight, dy, [False, True, has_bias])[1 : 2 + has_bias]

    def _backward(
        self, x: Tensor, weight: Tensor, dy: Tensor, mask: list[bool]
    ) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            dy, x, weight, [dy.shape[1]], *self.geometry, mask
        )
        return gradients

    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        is_transposed = self.geometry.transposed
        num = self.num_positions if is_transposed else prod(y_shape) // y_shape[1]
        return 2 * num * prod(self.weight_shape)


def convolution(
    op: Op,
    queue: WeightQueue,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Split ``F.conv1d``, ``F.conv2d`` and ``F.conv3d`` of a batch."""
    sources = _sources(input, weight, bias)
    if sources is None:
        return NotImplemented
    num = weight.dim() - 2
    strides, dilations = _each(stride, num), _each(dilation, num)
    if padding == "same" and strides == [1] * num:
        input, paddings = _pad_to_same(input, weight, dilations)
    elif not isinstance(padding, str):
        paddings = _each(padding, num)
    elif padding == "valid":
        paddings = [0] * num
    else:
        return NotImplemented
    geometry = _Geometry(strides, paddings, dilations, False, [0] * num, groups)
    return _convolve(op, queue, input, weight, bias, sources, geometry)


def transposed_convolution(
    op: Op,
    queue: WeightQueue,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """Split ``F.conv_transpose1d`` to ``F.conv_transpose3d`` of a batch."""
    sources = _sources(input, weight, bias)
    if sources is None:
        return NotImplemented
    num = weight.dim() - 2
    strides, paddings, dilations = (_each(s, num) for s in (stride, padding, dilation))
    more = _each(output_padding, num)
    geometry = _Geometry(strides, paddings, dilations, True, more, groups)
    return _convolve(op, queue, input, weight, bias, sources, geometry)


def _sources(x: Any, weight: Any, bias: Any) -> tuple[Source, ...] | None:
    source, biases = source_of(weight), sources_of_bias(bias)
    if source is None or biases is None or not is_dense(x) or x.dim() != weight.dim():
        return None
    return source, *biases


def _convolve(
    op: Op,
    queue: WeightQueue,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sources: tuple[Source, ...],
    geometry: _Geometry,
) -> Tensor:
    x, cast_weight, bias = autocast(x, weight, bias)
    split = _Convolution(weight, x, sources[0], sources[1:], geometry)

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        return torch.convolution(x, weight, bias, *geometry)

    return defer(convolve, x, (cast_weight,), split, queue)


def _each(size: Sizes, num: int) -> list[int]:
    """Give every dimension a size, as torch does for one that is given once."""
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes * num if len(sizes) == 1 else sizes


def _pad_to_same(x: Tensor, weight: Tensor, dilation: list[int]) -> tuple[Tensor, list[int]]:
    """Pad the ends where both sides differ, and return what is left, equal on both sides."""
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(total % 2 for total in totals):
        x = F.pad(x, [side for total in reversed(totals) for side in (0, total % 2)])
    return x, [total // 2 for total in totals]
