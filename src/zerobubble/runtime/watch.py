"""What is this process busy with, and since when? The others learn it when it takes long.

A rank whose wait times out knows only its neighbour, which may itself be waiting for another one.
So a thread of every process looks now and then what its rank does, and if that takes long, leaves
one line in the store that the processes share. A rank that waited in vain names who is at work.
"""

import threading
import time

import torch.distributed as dist

_KEY = "zerobubble/busy/"
_LOOK_EVERY_S = 0.5
_LONG_S = 1.0


# What a process does, and since when. A bare tuple: one is made before every op.
_Busy = tuple[object, float]
_WAITING: _Busy = (None, 0.0)


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

    @property
    def work(self) -> object:
        """What this process does at the moment; None while it waits for another."""
        return self._now[0]

    def begin(self, work: object) -> None:
        """Note the begin of some work."""
        self._now = (work, time.monotonic())

    def wait(self) -> _Busy:
        """Note that this process waits for another; return what it did before."""
        before, self._now = self._now, _WAITING
        return before

    def resume(self, before: _Busy) -> None:
        """Note the end of a wait."""
        work, _ = before
        if work is not None:
            self.begin(work)

    def _look(self, rank: int) -> None:
        told: _Busy | None = None
        while dist.is_initialized():
            time.sleep(_LOOK_EVERY_S)
            now = self._now
            work, since = now
            is_long = work is not None and time.monotonic() - since > _LONG_S
            if now is told or not (is_long or told):
                continue
            try:
                _write(rank, work if is_long else "", since)
            except (RuntimeError, ValueError):  # the store or the group has gone: nobody asks
                break
            told = now if is_long else None
        self._thread = None


watch = Watch()


def _write(rank: int, work: object, since: float) -> None:
    began = time.time() - (time.monotonic() - since)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{_KEY}{rank}", f"{began} {work}")


def longest_at_work() -> str | None:
    """Say which rank has been at work for the longest, and at what."""
    found = []
    store = dist.distributed_c10d._get_default_store()
    for rank in range(dist.get_world_size()):
        if store.check([f"{_KEY}{rank}"]):
            began, work = store.get(f"{_KEY}{rank}").decode().split(" ", 1)
            if work:
                found.append((time.time() - float(began), rank, work))
    if not found:
        return None
    seconds, rank, work = max(found)
    return f"rank {rank} has been at {work} for {seconds:.0f} s"
