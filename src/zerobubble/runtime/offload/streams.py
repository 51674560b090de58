"""How are activations copied beside the compute of a CUDA device? On a stream for each direction.

The host waits for nothing: the compute stream waits for the end of a copy before memory is let go
or read, and a copy back waits for the compute that used its memory before. Only what a file or a
checksum needs is done by threads, which do wait.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from zerobubble.runtime.offload.copying import Copy, put_all
from zerobubble.runtime.offload.marks import CopyMarks
from zerobubble.runtime.offload.pool import Buffer, HostPool
from zerobubble.runtime.offload.store import OffloadError, Place, Store

_Result = TypeVar("_Result", covariant=True)


class _Awaited(Generic[_Result]):
    """A copy on a stream; the compute stream waits for its end."""

    def __init__(self, find: Callable[[], tuple[torch.cuda.Event, _Result]]) -> None:
        self._find = find

    def result(self) -> _Result:
        """Let the compute stream wait."""
        ended, value = self._find()
        torch.cuda.current_stream().wait_event(ended)
        return value


class _Stored(NamedTuple):
    """Where something will be that a thread still writes."""

    written: "Future[list[Place]]"
    number: int


class StreamCopies:
    """Copies between a CUDA device and pinned host memory, and from there into a store.

    Args:
        device: where the rank computes.
        pool: of pinned memory.
        store: where the bytes go from there; None: they stay in the pool.
        marks: takes when the streams make each copy.
    """

    def __init__(
        self,
        device: torch.device,
        pool: HostPool,
        store: Store | None = None,
        marks: CopyMarks | None = None,
    ) -> None:
        self._marks = marks or CopyMarks()
        self.device = device
        self._pool = pool
        self._store = store
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._back = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._writer, self._reader = (
            ThreadPoolExecutor(1, f"zerobubble-{direction}") for direction in ("offload", "load")
        )
        self._writes: list[Future[Any]] = []
        self._reads: list[Future[Any]] = []

    def out(self, sources: list[Tensor]) -> Copy[list[Place]]:
        """Begin to copy away what the compute stream has made."""
        self._out.wait_event(_now())
        with torch.cuda.stream(self._out), self._marks.around(is_out=True):
            buffers: list[Buffer] = put_all(self._copy_out, self._give_back, sources)
        ended = _now(self._out)
        places: list[Place] = list(buffers)
        if self._store is not None:
            stored = self._writer.submit(self._write, buffers, ended)
            self._writes = [*_under_way(self._writes), stored]
            places = [_Stored(stored, index) for index in range(len(buffers))]
        return _Awaited(lambda: (ended, places))

    def _copy_out(self, source: Tensor) -> Buffer:
        buffer = self._take(source.numel(), after_reads=True)
        if buffer.busy_until is not None:
            self._out.wait_event(buffer.busy_until)
        with torch.cuda.stream(self._out):
            buffer.content.copy_(source, non_blocking=True)
        return buffer

    def _take(self, num_bytes: int, *, after_reads: bool = False) -> Buffer:
        """Take a buffer of the pool; if it has none left, wait for those that are in use."""
        while True:
            pending = _under_way([*self._writes, *(self._reads if after_reads else ())])
            try:
                return self._pool.take(num_bytes)
            except OffloadError:
                if not pending:
                    raise
            wait(pending[:1])

    def _give_back(self, buffer: Buffer) -> None:
        """Let others use a buffer when its copy has ended."""
        buffer.busy_until = _now(self._out)
        self._pool.give_back(buffer)

    def _write(self, buffers: list[Buffer], ended: torch.cuda.Event) -> list[Place]:
        assert self._store is not None
        try:
            ended.synchronize()
            return put_all(self._store.put, self._store.free, [b.content for b in buffers])
        finally:
            for buffer in buffers:
                buffer.busy_until = None
                self._pool.give_back(buffer)

    def back(self, places: list[Place], targets: list[Tensor]) -> Copy[None]:
        """Begin to copy into memory that the compute stream has taken."""
        taken = _now()
        if self._store is None:
            self._copy_back(places, targets, taken)
            ended = _now(self._back)
            return _Awaited(lambda: (ended, None))
        loaded = self._reader.submit(self._read, places, targets, taken)
        self._reads = [*_under_way(self._reads), loaded]
        return _Awaited(lambda: (loaded.result(), None))

    def _copy_back(
        self, buffers: list[Buffer], targets: list[Tensor], taken: torch.cuda.Event
    ) -> None:
        self._back.wait_event(taken)
        with torch.cuda.stream(self._back), self._marks.around(is_out=False):
            for buffer, target in zip(buffers, targets, strict=True):
                target.copy_(buffer.content, non_blocking=True)
        ended = _now(self._back)
        for buffer in buffers:
            buffer.busy_until = ended
            self._pool.give_back(buffer)
        targets.clear()

    def _read(
        self, places: list[_Stored], targets: list[Tensor], taken: torch.cuda.Event
    ) -> torch.cuda.Event:
        assert self._store is not None
        torch.cuda.set_device(self.device)
        buffers: list[Buffer] = []
        try:
            for place, target in zip(places, targets, strict=True):
                buffers.append(self._take(target.numel()))
                if buffers[-1].busy_until is not None:
                    buffers[-1].busy_until.synchronize()
                self._store.get(place.written.result()[place.number], buffers[-1].content)
        except BaseException:
            for buffer in buffers:
                self._pool.give_back(buffer)
            raise
        finally:
            for place in places:
                self.free(place)
        self._copy_back(buffers, targets, taken)
        return _now(self._back)

    def free(self, place: Place) -> None:
        """Forget what was copied away."""
        if self._store is None:
            self._give_back(place)
        elif place.written.exception() is None:
            self._store.free(place.written.result()[place.number])

    def close(self) -> None:
        """Wait for all copies, and let the host memory go."""
        for thread in (self._writer, self._reader):
            thread.shutdown(wait=True, cancel_futures=True)
        for stream in (self._out, self._back):
            stream.synchronize()
        if self._store is not None:
            self._store.close()
        self._pool.close()


def _under_way(jobs: Iterable[Future[Any]]) -> list[Future[Any]]:
    return [job for job in jobs if not job.done()]


def _now(stream: Any = None) -> torch.cuda.Event:
    """Mark this point of a stream, by default the compute stream."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream or torch.cuda.current_stream())
    return event
