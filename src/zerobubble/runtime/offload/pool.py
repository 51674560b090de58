"""In which host memory do offloaded activations wait? Buffers that are used again and again."""

from collections import defaultdict
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerobubble.runtime.offload.store import OffloadError, size_class


class Buffer:
    """Some bytes of the pool.

    Attributes:
        tensor: its bytes.
        num_bytes: how many of them were asked for.
        busy_until: event of a device after which nothing reads them any more, or None.
    """

    def __init__(self, size: int, is_pinned: bool) -> None:
        self.tensor = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
        self.num_bytes = size
        self.busy_until: Any = None

    @property
    def content(self) -> Tensor:
        """View the bytes that were asked for."""
        return self.tensor[: self.num_bytes]


class HostPool:
    """Lends host memory, by size class, and keeps what comes back for the next one.

    It is a store too: for a CPU, whose copies are made by threads.

    Args:
        limit_bytes: how much the pool may hold, lent or not; None: as much as there is.
        is_pinned: whether the memory is page-locked, as copies beside a device's compute need;
            then sizes are powers of two, since those are what torch takes.

    Attributes:
        held_bytes: size of all buffers.
        lent_bytes: size of those that are lent.
        peak_bytes: the largest ``held_bytes`` so far.
    """

    def __init__(self, limit_bytes: int | None = None, is_pinned: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.is_pinned = is_pinned
        self.held_bytes = self.lent_bytes = self.peak_bytes = 0
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._lock = Lock()

    def __str__(self) -> str:
        return "the host pool"

    def take(self, num_bytes: int) -> Buffer:
        """Lend a buffer; its content is arbitrary.

        Raises:
            OffloadError: the pool would exceed its limit, or the machine has no memory left.
        """
        size = 1 << (num_bytes - 1).bit_length() if self.is_pinned else size_class(num_bytes)
        with self._lock:
            fitting = self._free[size]
            buffer = fitting.pop() if fitting else self._new(size)
            self.lent_bytes += size
        buffer.num_bytes = num_bytes
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        size = buffer.tensor.numel()
        with self._lock:
            self._free[size].append(buffer)
            self.lent_bytes -= size

    def _new(self, size: int) -> Buffer:
        if self.limit_bytes is not None:
            self._make_room(size, self.limit_bytes)
        try:
            buffer = Buffer(size, self.is_pinned)
        except RuntimeError as error:
            raise OffloadError(
                f"no host memory for {size} bytes beside {self.held_bytes} in the pool: offload "
                "less, or to a file"
            ) from error
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return buffer

    def _make_room(self, size: int, limit: int) -> None:
        for unused in sorted(self._free, reverse=True):
            while self._free[unused] and self.held_bytes + size > limit:
                self._free[unused].pop()
                self.held_bytes -= unused
        if self.held_bytes + size > limit:
            raise OffloadError(
                f"{size} bytes do not fit into the host pool, which holds {self.held_bytes} of at "
                f"most {limit} bytes: raise the limit, offload less, or offload to a file"
            )

    def put(self, source: Tensor) -> Buffer:
        """Keep a copy of some bytes."""
        buffer = self.take(source.numel())
        np.copyto(buffer.content.numpy(), source.numpy())  # a tensor's copy_ takes all cores
        return buffer

    def get(self, place: Buffer, into: Tensor) -> None:
        """Copy back what was put."""
        np.copyto(into.numpy(), place.content.numpy())

    def free(self, place: Buffer) -> None:
        """Take the buffer of what was put back."""
        self.give_back(place)

    def close(self) -> None:
        """Let all memory go that is not lent."""
        with self._lock:
            self.held_bytes = self.lent_bytes
            self._free.clear()
