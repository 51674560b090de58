"""How do offloaded activations wait in a file? One file for each rank, places in it used again."""

import os
import socket
from collections import defaultdict
from pathlib import Path
from tempfile import mkstemp
from threading import Lock
from typing import NamedTuple
from weakref import finalize

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.offload.store import OffloadError, memory_of, size_class

_PREFIX = "zerobubble-offload"


class _Extent(NamedTuple):
    offset: int
    size: int


class FileStore:
    """Keeps bytes in a file of its own, which is removed at the end.

    Its name tells machine, rank and process: one that is killed leaves it behind, until another
    file is made in the folder.

    Args:
        directory: of the file; made if it is missing.
        rank: whose file it is.

    Attributes:
        path: of the file.
        num_bytes: its size so far.

    Raises:
        UsageError: no file can be made there.
    """

    def __init__(self, directory: str | Path, rank: int) -> None:
        prefix = f"{_PREFIX}-{socket.gethostname()}-rank{rank}-pid{os.getpid()}-"
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            remove_left_behind(directory)
            self._file, path = mkstemp(prefix=prefix, dir=directory)
        except OSError as error:
            raise UsageError(
                f"cannot offload to the folder {directory}: {error.strerror}: choose a folder that "
                "can be written to"
            ) from None
        self.path = Path(path)
        self.num_bytes = 0
        self._free: defaultdict[int, list[_Extent]] = defaultdict(list)
        self._lock = Lock()
        self.close = finalize(self, _remove, self._file, self.path)

    def __str__(self) -> str:
        return str(self.path)

    def put(self, source: Tensor) -> _Extent:
        """Write some bytes."""
        extent, memory, done = self._take(source.numel()), memory_of(source), 0
        try:
            while done < len(memory):
                done += os.pwrite(self._file, memory[done:], extent.offset + done)
        except OSError as error:
            self.free(extent)
            raise OffloadError(
                f"cannot write {len(memory)} bytes to {self.path}: {error.strerror}: free space "
                "there, or offload to another folder"
            ) from error
        return extent

    def get(self, place: _Extent, into: Tensor) -> None:
        """Read what was put."""
        memory, done, error = memory_of(into), 0, "the file ends too early"
        try:
            while done < len(memory):
                num_read = os.preadv(self._file, [memory[done:]], place.offset + done)
                if not num_read:
                    break
                done += num_read
        except OSError as raised:
            error = str(raised.strerror)
        if done < len(memory):
            raise OffloadError(
                f"cannot read {len(memory)} bytes back from {self.path}: {error}: let nothing else "
                "write there"
            )

    def free(self, place: _Extent) -> None:
        """Let another put write there."""
        with self._lock:
            self._free[place.size].append(place)

    def _take(self, num_bytes: int) -> _Extent:
        size = size_class(num_bytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            extent = _Extent(self.num_bytes, size)
            self.num_bytes += size
        return extent


def _remove(file: int, path: Path) -> None:
    os.close(file)
    path.unlink(missing_ok=True)


def remove_left_behind(directory: str | Path) -> None:
    """Remove the files of processes of this machine that have ended without doing so."""
    for path in Path(directory).glob(f"{_PREFIX}-{socket.gethostname()}-rank*-pid*-*"):
        pid = path.name.rpartition("-pid")[2].partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists() and Path("/proc/self").exists():
            path.unlink(missing_ok=True)
