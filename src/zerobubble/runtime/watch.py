"""What is this process busy with, and since when? The others learn it when it takes long.

A rank whose wait times out knows only its neighbour, which may itself be waiting for another one.
So a thread of every process looks now and then what its rank does, and if that takes long, leaves
one line in the store that the processes share. A rank that waited in vain names who is at work.
"""

import threading
import time
from typing import NamedTuple

import torch.distributed as dist

_KEY = "zerobubble/busy/"
_LOOK_EVERY_S = 0.5
_LONG_S = 1.0


class _Busy(NamedTuple):
    """Something that a process does; in a step, or between the steps."""

    work: object | None
    since: float
    is_in_step: bool = False


_WAITING = _Busy(None, 0.0)


class Watch:
    """What this process does at the moment: it writes that down, and a thread reads it."""

    def __init__(self) -> None:
        self._now = _WAITING
        self._thread: threading.Thread | None = None

    def start(self, rank: int) -> None:
        """Let a thread look, unless one does."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, args=(rank,), daemon=True)
            self._thread.start()

    def begin(self, work: object, is_in_step: bool = False) -> None:
        """Note the begin of some work."""
        self._now = _Busy(work, time.monotonic(), is_in_step)

    def wait(self) -> _Busy:
        """Note that this process waits for another; return what it did before."""
        before, self._now = self._now, _WAITING
        return before

    def resume(self, before: _Busy) -> None:
        """Note the end of a wait."""
        if before.work is not None:
            self.begin(before.work, before.is_in_step)

    def _look(self, rank: int) -> None:
        told = None
        while dist.is_initialized():
            time.sleep(_LOOK_EVERY_S)
            now = self._now
            is_long = now.work is not None and time.monotonic() - now.since > _LONG_S
            if now is told or not (is_long or told):
                continue
            try:
                _write(rank, now if is_long else _Busy("", 0.0))
            except (RuntimeError, ValueError):  # the store or the group has gone: nobody asks
                break
            told = now if is_long else None
        self._thread = None


watch = Watch()


def _write(rank: int, busy: _Busy) -> None:
    began = time.time() - (time.monotonic() - busy.since)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{_KEY}{rank}", f"{int(busy.is_in_step)} {began} {busy.work}")


def longest_at_work() -> str | None:
    """Say which rank has been at work for the longest; ops come before what is between steps."""
    found = []
    store = dist.distributed_c10d._get_default_store()
    for rank in range(dist.get_world_size()):
        if store.check([f"{_KEY}{rank}"]):
            is_in_step, began, work = store.get(f"{_KEY}{rank}").decode().split(" ", 2)
            if work:
                found.append((int(is_in_step), time.time() - float(began), rank, work))
    if not found:
        return None
    _, seconds, rank, work = max(found)
    return f"rank {rank} has been at {work} for {seconds:.0f} s"
