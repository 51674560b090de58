"""What does a place for offloaded bytes do? Put, get and free; with a checksum if one is wanted."""

from typing import Any, NamedTuple, Protocol
from zlib import crc32

import torch
from torch import Tensor

# Where a store keeps some bytes; what it is, only the store knows.
Place = Any


class OffloadError(RuntimeError):
    """Activations could not be kept or brought back; names the bytes and what to do."""


class Store(Protocol):
    """Keeps bytes of CPU tensors (uint8, one dimension); called from copy threads."""

    def put(self, source: Tensor) -> Place:
        """Keep a copy of some bytes, or raise an OffloadError."""

    def get(self, place: Place, into: Tensor) -> None:
        """Copy back what was put at a place, or raise an OffloadError."""

    def free(self, place: Place) -> None:
        """Forget a place."""

    def close(self) -> None:
        """Forget everything; may be called twice."""


class _Checked(NamedTuple):
    place: Place
    checksum: int


class VerifiedStore:
    """Compares a checksum (CRC-32) of everything that comes back from another store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.close = store.close

    def put(self, source: Tensor) -> Place:
        """Keep bytes and their checksum."""
        return _Checked(self._store.put(source), checksum(source))

    def get(self, place: Place, into: Tensor) -> None:
        """Bring bytes back, or raise an OffloadError if they are not those that were put."""
        self._store.get(place.place, into)
        if checksum(into) != place.checksum:
            raise OffloadError(
                f"{into.numel()} offloaded bytes came back changed from {self._store}: the memory "
                "or disk there is faulty, or something else writes to it"
            )

    def free(self, place: Place) -> None:
        """Forget a place."""
        self._store.free(place.place)


def checksum(source: Tensor) -> int:
    """Give the CRC-32 of the bytes of a CPU tensor."""
    return crc32(memory_of(source))


def memory_of(source: Tensor) -> memoryview:
    """Give the bytes of a one-dimensional CPU tensor, without a copy."""
    return source.numpy().data


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """View a whole storage as uint8, one dimension."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def size_class(num_bytes: int) -> int:
    """Round up to one of eight sizes between two powers of two, so that places fit again.

    >>> [size_class(n) for n in (8, 100, 1000, 1025, 2**20)]
    [8, 104, 1024, 1152, 1048576]
    """
    step = 1 << max(0, (num_bytes - 1).bit_length() - 4)
    return -(-num_bytes // step) * step
