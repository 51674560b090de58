"""What has the graph of one microbatch saved, and where is it now?"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Parameter

from zerobubble.runtime.offload.copying import Copies, Copy
from zerobubble.runtime.offload.shared import SharedStorages
from zerobubble.runtime.offload.store import OffloadError, Place, bytes_of

# Allocators of torch align by this, and kernels round by the alignment.
_ALIGNMENT = {"cpu": 64, "cuda": 512}


class _Moved:
    """A storage that is on the device, away, or on the device again."""

    __slots__ = ("device", "num_bytes", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage: torch.UntypedStorage | None = storage
        self.num_bytes, self.device = storage.nbytes(), storage.device

    def take_memory(self) -> None:
        """Take device memory again; its content is arbitrary."""
        memory = torch.empty(self.num_bytes, dtype=torch.uint8, device=self.device)
        self.storage = memory.untyped_storage()


class _Saved:
    """A tensor that the graph saves: itself or, when its storage is moved, what it looks like."""

    __slots__ = ("__weakref__", "_is_modified", "_look", "_moved", "_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor.detach()  # else an output would hold its own graph
        self._version = tensor._version
        self._is_modified = False
        self._moved: _Moved | None = None
        self._look: tuple[Any, ...] = ()

    @property
    def storage(self) -> torch.UntypedStorage:
        assert self._tensor is not None, "nothing has been moved yet"
        return self._tensor.untyped_storage()

    def leave_to(self, moved: _Moved) -> None:
        """Let go of the storage."""
        tensor = self._tensor
        assert tensor is not None, "it leaves once"
        self._is_modified = tensor._version != self._version
        self._look = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        self._moved, self._tensor = moved, None

    def refuse_modified(self) -> None:
        """Raise a RuntimeError, as autograd does, if it was modified since it was saved."""
        tensor = self._tensor
        if self._is_modified or (tensor is not None and tensor._version != self._version):
            raise RuntimeError(
                f"a tensor of shape {list(tensor.shape if tensor is not None else self._look[1])} "
                "that is needed for gradient computation has been modified by an inplace "
                "operation: modify a clone"
            )

    def tensor(self) -> Tensor:
        """Give the tensor back to the graph, unless it was modified."""
        self.refuse_modified()
        if self._tensor is not None:
            return self._tensor
        assert self._moved is not None
        assert self._moved.storage is not None, "L comes before B"
        *place, dtype = self._look
        storage = self._moved.storage
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *place)


class Parcel:
    """What one stage saves for one microbatch; its storages leave and come back together.

    Each storage is moved once, however many tensors lie on it. It stays where it is if it is
    small, on another device, not aligned as torch aligns (kernels may then round in another way),
    given, or shared with the graph of another microbatch.

    Args:
        copies: the copy engines of the rank.
        given: tensors that others hold in any case, such as parameters.
        smallest_bytes: of a storage that is moved.
        shared: what the parcels of a stage have in common; None: this one is alone.

    Attributes:
        moved_bytes: size of what is moved.
    """

    def __init__(
        self,
        copies: Copies,
        given: Iterable[Tensor],
        smallest_bytes: int = 1,
        shared: SharedStorages | None = None,
    ) -> None:
        self._copies = copies
        self._shared = SharedStorages() if shared is None else shared
        self._given = {tensor.untyped_storage()._cdata for tensor in given if is_plain(tensor)}
        self._smallest_bytes = smallest_bytes
        self._packed: list[ref[_Saved]] = []
        self._all_moved: list[_Moved] = []
        self._moves: list[tuple[ref[_Saved], _Moved]] = []
        self._places: list[Place] = []
        self._leaving: Copy[list[Place]] | None = None
        self._coming: Copy[None] | None = None
        self.moved_bytes = 0

    def pack(self, tensor: Tensor) -> _Saved:
        """Take a tensor that the graph saves."""
        saved = _Saved(tensor)
        if is_plain(tensor) and not (tensor.is_conj() or tensor.is_neg()):
            self._packed.append(ref(saved))
        return saved

    @staticmethod
    def unpack(saved: _Saved) -> Tensor:
        """Give a tensor back to the graph, whose nodes hold this function: not with a parcel."""
        return saved.tensor()

    def send(self) -> None:
        """Begin to copy away what the graph holds now."""
        found: dict[int, _Moved] = {}
        for reference in self._packed:
            saved = reference()
            if saved is not None and self._may_move(storage := saved.storage):
                moved = found.setdefault(storage._cdata, _Moved(storage))
                self._moves.append((reference, moved))
        self._packed.clear()
        self._shared.note(moved.storage for moved in found.values() if moved.storage is not None)
        self._move_unshared(found.values())
        self._leaving = self._copies.out(self._views())

    def _move_unshared(self, all_moved: Iterable[_Moved]) -> None:
        """Let what is shared out of what is moved."""
        self._all_moved = [moved for moved in all_moved if moved.storage not in self._shared]
        self._moves = [(saved, m) for saved, m in self._moves if m.storage not in self._shared]
        self.moved_bytes = sum(moved.num_bytes for moved in self._all_moved)

    def _may_move(self, storage: torch.UntypedStorage) -> bool:
        return (
            storage._cdata not in self._given
            and storage.device == self._copies.device
            and storage.nbytes() >= max(1, self._smallest_bytes)
            and storage.data_ptr() % _ALIGNMENT.get(storage.device.type, 1) == 0
        )

    def _views(self) -> list[Tensor]:
        return [bytes_of(moved.storage) for moved in self._all_moved if moved.storage is not None]

    def drop(self) -> None:
        """Wait until the copy has ended, and let go of the device memory.

        Raises:
            OffloadError: the copy has failed.
        """
        assert self._leaving is not None, "O comes after F"
        leaving, self._leaving = self._leaving, None
        self._places = leaving.result()
        self._leave_shared()
        for reference, moved in self._moves:
            if saved := reference():
                saved.leave_to(moved)
        for moved in self._all_moved:
            moved.storage = None

    def _leave_shared(self) -> None:
        """Leave where it is what turned out to be shared while it was copied."""
        pairs = list(zip(self._all_moved, self._places, strict=True))
        self._places = [place for moved, place in pairs if moved.storage not in self._shared]
        for moved, place in pairs:
            if moved.storage in self._shared:
                self._copies.free(place)
        self._move_unshared(self._all_moved)

    def fetch(self) -> list[Tensor]:
        """Take device memory again and begin to copy back; return views of what comes (uint8)."""
        for moved in self._all_moved:
            moved.take_memory()
        targets = self._views()
        places, self._places = self._places, []
        self._coming = self._copies.back(places, list(targets))
        return targets

    def arrive(self) -> None:
        """Let the compute wait until the copy has ended, and the graph alone hold what came.

        Raises:
            OffloadError: the copy has failed.
        """
        assert self._coming is not None, "B comes after L"
        self._all_moved = []
        coming, self._coming = self._coming, None
        try:
            coming.result()
        except OffloadError:
            self._refuse_modified()  # if that is why the checksum is another one
            raise
        self._moves.clear()

    def _refuse_modified(self) -> None:
        for reference, _ in self._moves:
            if saved := reference():
                saved.refuse_modified()

    def abandon(self) -> None:
        """Wait for the copies under way, whatever becomes of them, and forget what is away."""
        with suppress(Exception):
            if self._leaving is not None:
                self._places = self._leaving.result()
        with suppress(Exception):
            if self._coming is not None:
                self._coming.result()
        self._leaving = self._coming = None
        for place in self._places:
            self._copies.free(place)
        self._places = []


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary one with a storage of its own kind."""
    return type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided
