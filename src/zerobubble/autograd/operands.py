"""Which operands can be split? Anything else keeps its whole gradient in B."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

# Views that show each element of the parameter at most once.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        "Alias Permute Select Slice Split SplitWithSizes T Transpose Unbind Unsqueeze View"
    ).split()
)


class Source(NamedTuple):
    """The parameter behind an operand, and the way back to it; None: they are the same."""

    parameter: Parameter
    restore: Callable[[Tensor], Tensor] | None = None


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


def source_of(operand: Any, dim: int | None = None) -> Source | None:
    """Find the trainable parameter that an operand of ``dim`` dimensions is, or is a view of.

    A frozen one is not split: it leaves too little for W to hold its output gradient.
    """
    if not isinstance(operand, Tensor) or (dim is not None and operand.dim() != dim):
        return None
    if type(operand) is Parameter:
        return Source(operand) if is_trainable(operand) else None
    parameter = operand._base
    if not isinstance(parameter, Parameter) or not is_trainable(parameter):
        return None
    if not _is_direct_view(operand, parameter):
        return None
    return Source(parameter, partial(_restore_view, parameter, operand.detach()))


def sources_of_bias(bias: Any, max_dim: int = 1) -> tuple[Source, ...] | None:
    """Return the source of a trainable bias, () for an absent or constant one, None for others."""
    if bias is None:
        return ()
    if not is_dense(bias) or bias.dim() > max_dim:
        return None
    if not bias.requires_grad:
        return ()
    source = source_of(bias)
    return None if source is None else (source,)


def _is_direct_view(operand: Tensor, parameter: Parameter) -> bool:
    """Whether one view op leads from parameter to operand: a hook in between could not be seen."""
    node = operand.grad_fn
    return (
        type(operand) is Tensor
        and node is not None
        and node.name() in _VIEWS
        and not operand._backward_hooks
        and not operand.retains_grad
        and getattr(node.next_functions[0][0], "variable", None) is parameter
        and torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    )


def _restore_view(parameter: Parameter, view: Tensor, gradient: Tensor) -> Tensor:
    """Spread the gradient of a view over the shape and strides of the parameter."""
    new = torch.empty_like if view.numel() == parameter.numel() else torch.zeros_like
    whole = new(parameter, dtype=gradient.dtype, requires_grad=False)
    offset = view.storage_offset() - parameter.storage_offset()
    whole.as_strided(view.shape, view.stride(), offset).copy_(gradient)
    return whole


def autocast(x: Tensor, *operands: Any) -> tuple[Any, ...]:
    """Cast as autocast does, x inside the graph and operands outside, so W sees their own."""
    device = x.device.type
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return _cast(x, dtype), *(_cast_detached(p, dtype) for p in operands)
    return x, *map(_detached, operands)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def _cast_detached(p: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if p is None or p.dtype in (dtype, torch.float64):
        return _detached(p)
    return p.detach().to(dtype).requires_grad_(p.requires_grad)


def _detached(p: Tensor | None) -> Tensor | None:
    """Leave the graph but keep the requires_grad flag: torch.matmul folds an operand by it."""
    if p is None or p.grad_fn is None:
        return p
    return p.detach().requires_grad_(p.requires_grad)
