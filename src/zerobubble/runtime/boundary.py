"""What travels between two stages? Tensors, and a layout that puts them back together."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from zerobubble.errors import UsageError

_unsafe_view = torch.ops.aten._unsafe_view.default

_TENSOR = pytree.tree_structure(0)

Constant = bool | int | float | str | None


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and need of a gradient of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def __str__(self) -> str:
        gradient = " with gradient" if self.requires_grad else ""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{gradient}"

    @property
    def num_bytes(self) -> int:
        """Size of a tensor of this shape and dtype."""
        return math.prod(self.shape) * self.dtype.itemsize

    def allocate(self, device: torch.device) -> Tensor:
        """Make an uninitialised tensor of this shape and dtype."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Layout:
    """How a value (a tensor, or tensors and constants in tuples, lists and dicts) is built.

    Attributes:
        tree: the nesting.
        leaves: a ``TensorSpec`` for each tensor, and the constants themselves.
    """

    tree: pytree.TreeSpec
    leaves: tuple[TensorSpec | Constant, ...]

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors among the leaves, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorSpec))

    @cached_property
    def gradients(self) -> tuple[TensorSpec, ...]:
        """The tensors that need a gradient, in order."""
        return tuple(leaf for leaf in self.tensors if leaf.requires_grad)

    @cached_property
    def _is_tensor(self) -> bool:
        return self.tree == _TENSOR and len(self.tensors) == 1

    def __str__(self) -> str:
        """Describe the leaves in one line; the nesting would need several."""
        return f"({', '.join(map(str, self.leaves))})"

    def build(self, tensors: list[Tensor]) -> Any:
        """Put the tensors and constants together again."""
        if self._is_tensor:
            return tensors[0]
        source = iter(tensors)
        leaves = [next(source) if isinstance(x, TensorSpec) else x for x in self.leaves]
        return pytree.tree_unflatten(leaves, self.tree)


@lru_cache
def _layout_of_tensor(shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> Layout:
    return Layout(_TENSOR, (TensorSpec(tuple(shape), dtype, requires_grad),))


def flatten(value: Any, what: str) -> tuple[list[Tensor], Layout]:
    """Split a value into its tensors and its layout.

    Raises:
        UsageError: it holds something else than tensors and constants; ``what`` names the value.
    """
    if type(value) is Tensor:
        return [value], _layout_of_tensor(value.shape, value.dtype, value.requires_grad)
    leaves, tree = pytree.tree_flatten(value)
    described: list[TensorSpec | Constant] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append(TensorSpec(tuple(leaf.shape), leaf.dtype, leaf.requires_grad))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            described.append(leaf)
        else:
            raise UsageError(
                f"{what} holds a {type(leaf).__name__}: only tensors, numbers, strings and None, "
                "in tuples, lists or dicts, can cross a stage boundary"
            )
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], Layout(tree, tuple(described))


def enter(leaf: Tensor) -> Tensor:
    """Alias a boundary tensor, so that the first op of a stage may change it in place.

    To autograd the result is no view: in-place ops on views of a leaf are forbidden.
    """
    entered: Tensor = _unsafe_view(leaf, leaf.shape)
    return entered
