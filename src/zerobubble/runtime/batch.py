"""What does a rank read of a batch, and which part of it belongs to which microbatch?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from zerobubble.errors import UsageError
from zerobubble.runtime.stage import Stage

_ALIGNMENT = 512  # bytes: no device looks at more


class Whole:
    """Marks a value that every microbatch gets as it is, whatever it is, instead of its samples.

    >>> whole = Whole(torch.ones(5, 5))  # pipe.step(x, y, mask=whole): one mask for all samples
    >>> [part.shape for part in split_batch(whole, (2, 1), "keyword mask")]
    [torch.Size([5, 5]), torch.Size([5, 5])]
    """

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class Batch:
    """What this rank reads of a batch, split into microbatches.

    Attributes:
        sizes: how many samples each microbatch has.
        signature: of the model's input.
        keywords: of the layers on this rank, for each microbatch.
        inputs: of the first stage; None on other ranks.
        targets: of the last stage; None on other ranks.
    """

    sizes: tuple[int, ...]
    signature: int
    keywords: list[dict[str, Any]]
    inputs: list[Any] | None
    targets: list[Any] | None

    def give(self, stages: Mapping[int, Stage], num_stages: int) -> None:
        """Hand the microbatches to the stages."""
        for stage in stages.values():
            stage.begin(self.sizes, self.keywords)
        if self.inputs is not None:
            stages[0].give_batch(self.inputs)
        if self.targets is not None:
            stages[num_stages - 1].targets = self.targets

    def copy(self) -> "Batch":
        """Copy the tensors, since a model may change its inputs in place."""
        copies: dict[Tensor, Tensor] = {}  # of a Whole tensor all microbatches share one

        def copy(tensor: Tensor) -> Tensor:
            if tensor not in copies:
                copies[tensor] = copy_aligned(tensor)
            return copies[tensor]

        parts = (self.keywords, self.inputs, self.targets)
        return Batch(self.sizes, self.signature, *pytree.tree_map_only(Tensor, copy, parts))


def copy_aligned(tensor: Tensor) -> Tensor:
    """Copy a tensor to an address that is aligned as its own.

    Kernels round in another way where rows do not begin at multiples of a vector's size.
    """
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor.clone()
    stride = tensor.stride()
    own = tuple(1 if step == 0 else size for size, step in zip(tensor.shape, stride, strict=True))
    extent = 1 + sum((size - 1) * step for size, step in zip(own, stride, strict=True))
    buffer = tensor.new_empty(extent + _ALIGNMENT // tensor.element_size() + 1)
    offset = (tensor.data_ptr() - buffer.data_ptr()) % _ALIGNMENT // tensor.element_size()
    copied = buffer.as_strided(own, stride, offset)
    copied.copy_(tensor.as_strided(own, stride))
    return copied.expand(tensor.shape)


def take_batch(
    x: Any,
    y: Any,
    keywords: Mapping[str, Any],
    sizes: tuple[int, ...],
    signature: int,
    device: torch.device,
) -> Batch:
    """Bring a batch to the device in microbatches of some sizes; None is not read here.

    Raises:
        UsageError: a tensor has another number of samples than all microbatches together.
    """

    def split(value: Any, what: str) -> list[Any]:
        return split_batch(_on(device, value), sizes, what)

    parts = {name: split(value, f"keyword {name}") for name, value in keywords.items()}
    return Batch(
        sizes,
        signature,
        [{name: part[i] for name, part in parts.items()} for i in range(len(sizes))],
        None if x is None else split(x, "the batch x"),
        None if y is None else split(y, "the target y"),
    )


def share_samples(num_samples: int, num_microbatches: int) -> tuple[int, ...]:
    """Share the samples of a batch among microbatches, larger ones first.

    Raises:
        UsageError: there are fewer samples than microbatches.

    >>> share_samples(7, 3)
    (3, 2, 2)
    """
    if num_samples < num_microbatches:
        raise UsageError(
            f"a batch with {num_samples} samples cannot be split into {num_microbatches} "
            f"microbatches: give at least {num_microbatches} samples, or build the schedule for "
            "fewer microbatches"
        )
    size, num_larger = divmod(num_samples, num_microbatches)
    return tuple(size + (i < num_larger) for i in range(num_microbatches))


def count_samples(x: Any) -> int:
    """Count the samples of the model's input.

    Raises:
        UsageError: there is no tensor to count, or tensors differ in their first dimension.
    """
    shapes = [list(leaf.shape) for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    if not shapes:
        raise UsageError(
            "the batch x holds no tensor: give one whose first dimension is the samples"
        )
    for shape in shapes:
        if shape[:1] != shapes[0][:1] or not shape:
            raise UsageError(
                f"the batch x has tensors of shapes {shapes[0]} and {shape}: give all the same "
                "first dimension, the samples, and wrap those for all samples in zerobubble.Whole"
            )
    return int(shapes[0][0])


def signature(x: Any) -> int:
    """Condense all that the layouts of the stages' outputs follow from, but for the samples."""
    leaves, tree = pytree.tree_flatten(x)
    return crc32(f"{tree}{[_describe(leaf) for leaf in leaves]}".encode())


def _describe(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype}{list(leaf.shape[1:])}"
    if isinstance(leaf, Whole):
        inner = [f"{getattr(v, 'shape', type(v))}" for v in pytree.tree_leaves(leaf.value)]
        return f"whole {inner}"
    return repr(leaf)


def split_batch(value: Any, sizes: Sequence[int], what: str) -> list[Any]:
    """Split every tensor along its first dimension; constants and ``Whole`` go to all parts.

    Raises:
        UsageError: a tensor has another first dimension, or there is something else.

    >>> split_batch((torch.arange(3), "text"), (2, 1), "the batch x")
    [(tensor([0, 1]), 'text'), (tensor([2]), 'text')]
    """
    leaves, tree = pytree.tree_flatten(value)
    parts = [_split_leaf(leaf, sizes, what) for leaf in leaves]
    return [pytree.tree_unflatten(part, tree) for part in zip(*parts, strict=True)] or [
        value for _ in sizes
    ]


def _split_leaf(leaf: Any, sizes: Sequence[int], what: str) -> Sequence[Any]:
    if isinstance(leaf, Tensor):
        if leaf.shape[:1] != (sum(sizes),):
            raise UsageError(
                f"{what} has a tensor of shape {list(leaf.shape)}, but the batch has {sum(sizes)} "
                "samples: make that its first dimension, or wrap the tensor in zerobubble.Whole "
                "if every microbatch needs all of it"
            )
        return leaf.tensor_split(len(sizes))
    if isinstance(leaf, Whole):
        return [leaf.value] * len(sizes)
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return [leaf] * len(sizes)
    raise UsageError(
        f"{what} holds a {type(leaf).__name__}: give tensors, numbers, strings and None, in "
        "tuples, lists or dicts, and wrap anything else in zerobubble.Whole"
    )


def _on(device: torch.device, value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, Whole):
            return Whole(_on(device, leaf.value))
        return leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(move, value)
