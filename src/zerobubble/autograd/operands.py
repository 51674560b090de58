"""Which operands can be split? Anything else keeps its whole gradient in B."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def is_dense(x: Any) -> bool:
    """Whether x is an ordinary tensor: subclasses bring their own rules."""
    return type(x) in (Tensor, Parameter) and x.layout is torch.strided and not x.is_nested


def is_rows(x: Any) -> bool:
    """Whether x can be the left operand of a matrix product; a vector takes another kernel."""
    return is_dense(x) and x.dim() >= 2


def is_trainable(p: Any) -> bool:
    """Whether p is a leaf that W may write to; a tensor hook must see the gradient inside B."""
    return (
        type(p) is Parameter
        and p.requires_grad
        and p.is_leaf
        and not p._backward_hooks
        and p.layout is torch.strided
        and not p.is_complex()
    )


def is_matrix(weight: Any) -> bool:
    """Whether weight is trainable and 2-D; a frozen one leaves too little for W to hold dy."""
    return is_trainable(weight) and weight.dim() == 2


def is_addable(bias: Any) -> bool:
    """Whether bias is absent, or a vector that is constant or trainable."""
    if bias is None:
        return True
    return is_dense(bias) and bias.dim() == 1 and (not bias.requires_grad or is_trainable(bias))


def autocast(x: Tensor, *parameters: Any) -> tuple[Any, ...]:
    """Cast as autocast does, x inside the graph and parameters outside, so W sees their own."""
    if not torch._C._is_any_autocast_enabled():
        return x, *parameters
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *parameters
    dtype = torch.get_autocast_dtype(device)
    return _cast(x, dtype), *(_cast_detached(p, dtype) for p in parameters)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def _cast_detached(p: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Cast, keeping the requires_grad flag: torch.matmul folds its left operand by that flag."""
    if p is None or p.dtype in (dtype, torch.float64):
        return p
    return p.detach().to(dtype).requires_grad_(p.requires_grad)
