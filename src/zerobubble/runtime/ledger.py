"""How many bytes of boundary tensors and of activations are alive?"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, Protocol
from weakref import ref

from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from zerobubble.autograd import WeightQueue

_NOTHING: AbstractContextManager[Any] = nullcontext()


class Account:
    """Counts the bytes of tensors by watching their storages, whoever holds them.

    Attributes:
        peak_bytes: the largest number of live bytes seen at any ``track``.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._storages: dict[int, tuple[ref[UntypedStorage], int]] = {}

    def track(self, tensors: Iterable[Tensor]) -> None:
        """Watch the storages of some tensors, and note the peak."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = (ref(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())

    def live_bytes(self) -> int:
        """Count the bytes of the watched storages that are still alive."""
        self._storages = {
            key: (storage, size)
            for key, (storage, size) in self._storages.items()
            if storage() is not None
        }
        return sum(size for _, size in self._storages.values())

    def holds(self, tensor: Tensor) -> bool:
        """Say whether the storage of a tensor is watched."""
        storage, _ = self._storages.get(tensor.untyped_storage()._cdata, (None, 0))
        return storage is not None and storage() is not None


class Keeper(Protocol):
    """Keeps what a graph saves, and gives it back to the backward."""

    def pack(self, tensor: Tensor) -> Any:
        """Take a tensor; return what the graph holds in its place."""

    def unpack(self, packed: Any) -> Tensor:
        """Give the tensor back."""


class Ledger:
    """Watches the memory of one rank, off by default: watching takes longer than small ops.

    Boundary tensors are what travels between stages of different ranks: buffers of receives, and
    outputs and input gradients that are sent. Activations are what F saves for the backward and
    what waits in the queues of W; storages count once, and neither parameters, buffers and batch
    nor boundary tensors count.

    Attributes:
        is_on: whether tensors are watched.
        boundary: the account of boundary tensors.
        activations: the account of activations.
        activation_bytes: live bytes of activations at the end of every op since ``clear``.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self._given = Account()
        self.boundary = Account()
        self.activations = Account()
        self.activation_bytes: list[int] = []

    def track_boundary(self, tensors: Iterable[Tensor]) -> None:
        """Watch tensors that travel between ranks."""
        if self.is_on:
            self.boundary.track(tensors)

    def watching(
        self, module: nn.Module, batch: Any, keeper: Keeper | None = None
    ) -> AbstractContextManager[Any]:
        """Watch what the graph saves within the block, but for the module's and batch's tensors.

        A keeper, if there is one, keeps it in place of the graph: hooks do not stack.
        """
        if not self.is_on:
            return _NOTHING if keeper is None else saved_tensors_hooks(keeper.pack, keeper.unpack)
        self.exclude(tensors_given(module, batch))
        keep, unpack = (_detached, _as_it_is) if keeper is None else (keeper.pack, keeper.unpack)

        def pack(tensor: Tensor) -> Any:
            self.track_activations([tensor])
            return keep(tensor)

        return saved_tensors_hooks(pack, unpack)

    def exclude(self, tensors: Iterable[Tensor]) -> None:
        """Do not count some tensors as activations from now on."""
        if self.is_on:
            self._given.track(tensors)

    def end_op(self, queue: WeightQueue | None = None) -> None:
        """Note the live bytes of activations, after watching what a queue of W holds."""
        if not self.is_on:
            return
        if queue is not None:
            self.track_activations(queue.tensors())
        self.activation_bytes.append(self.activations.live_bytes())

    def track_activations(self, tensors: Iterable[Tensor]) -> None:
        """Watch activations, but for what counts as something else."""
        if not self.is_on:
            return
        others = (self._given, self.boundary)
        self.activations.track(t for t in tensors if not any(each.holds(t) for each in others))


def tensors_given(module: nn.Module, batch: Any) -> Iterator[Tensor]:
    """List what is there before F and stays: the tensors of a module and of a batch."""
    of_batch = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    return chain(module.parameters(), module.buffers(), of_batch)


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach()  # an output that its own graph holds would never be freed


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
