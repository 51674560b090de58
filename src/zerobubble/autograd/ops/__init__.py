"""Which function is split by which handler? One table; each family of ops has a file.

An op is one handler plus one class: the handler says whether it can take a call and returns
NotImplemented for one that it leaves to plain autograd; the class computes the input gradient at B
and, called, the parameter gradients at W. Both mirror the formulas of ``torch``, down to the
operand order of each GEMM, so that results are bitwise equal.
"""

from typing import Any

import torch
import torch.nn.functional as F

from zerobubble.autograd.function import Op
from zerobubble.autograd.ops.batches import baddbmm, bmm
from zerobubble.autograd.ops.convolution import convolution, transposed_convolution
from zerobubble.autograd.ops.einsum import einsum
from zerobubble.autograd.ops.embedding import embedding
from zerobubble.autograd.ops.grouped import grouped_mm
from zerobubble.autograd.ops.matmul import addmm, linear, matmul

# One entry per name under which a module may call an op; a torch may lack the newest ones.
_NAMES: tuple[tuple[Any, str, Op], ...] = (
    (F, "linear", linear),
    (torch, "matmul", matmul),
    (torch.Tensor, "matmul", matmul),
    (torch.Tensor, "__matmul__", matmul),
    (torch, "mm", matmul),
    (torch.Tensor, "mm", matmul),
    (torch, "addmm", addmm),
    (torch.Tensor, "addmm", addmm),
    (torch, "bmm", bmm),
    (torch.Tensor, "bmm", bmm),
    (torch, "baddbmm", baddbmm),
    (torch.Tensor, "baddbmm", baddbmm),
    (torch, "einsum", einsum),
    (torch.functional, "einsum", einsum),
    (F, "embedding", embedding),
    (F, "conv1d", convolution),
    (F, "conv2d", convolution),
    (F, "conv3d", convolution),
    (torch, "conv1d", convolution),
    (torch, "conv2d", convolution),
    (torch, "conv3d", convolution),
    (F, "conv_transpose1d", transposed_convolution),
    (F, "conv_transpose2d", transposed_convolution),
    (F, "conv_transpose3d", transposed_convolution),
    (torch, "conv_transpose1d", transposed_convolution),
    (torch, "conv_transpose2d", transposed_convolution),
    (torch, "conv_transpose3d", transposed_convolution),
    (F, "grouped_mm", grouped_mm),
    (torch, "_grouped_mm", grouped_mm),
)
SITES = tuple(site for site in _NAMES if hasattr(site[0], site[1]))
