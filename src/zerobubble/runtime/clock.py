"""What time is it on a device, and on the other ranks?"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from zerobubble.costs import Floats
from zerobubble.runtime.transport import Transport

_NUM_PINGS = 5


class Clock(Protocol):
    """What marks a moment on a device, at once, and tells later when that was."""

    def mark(self) -> Any:
        """Mark this moment."""

    def device_ms(self, marks: Sequence[Any]) -> Floats:
        """Tell when the device came to these marks."""

    def host_ms(self, marks: Sequence[Any]) -> Floats:
        """Tell when the host made these marks."""


class HostClock:
    """Marks of a CPU, where the host runs the ops itself."""

    mark = staticmethod(time.perf_counter_ns)

    def device_ms(self, marks: Sequence[int]) -> Floats:
        """Give the marks in ms."""
        return np.asarray(marks, dtype=np.float64) / 1e6

    host_ms = device_ms


EventMark = tuple[int, torch.cuda.Event]


class EventClock:
    """Marks of a CUDA device: events in its current stream, for which nothing waits."""

    def mark(self) -> EventMark:
        """Note the time of the host and record an event."""
        return time.perf_counter_ns(), _recorded_event()

    def device_ms(self, marks: Sequence[EventMark]) -> Floats:
        """Wait until the device is idle; give its times of the marks on the host's clock.

        Distances between events are single precision, so that they are measured from the first
        mark, and that one from now.
        """
        if not marks:
            return np.empty(0)
        torch.cuda.synchronize()
        now = _recorded_event()
        now.synchronize()
        _, first = marks[0]
        begin = time.perf_counter_ns() / 1e6 - first.elapsed_time(now)
        return np.array([begin + first.elapsed_time(event) for _, event in marks])

    def host_ms(self, marks: Sequence[EventMark]) -> Floats:
        """Give the host's times in ms."""
        return np.array([host_ns / 1e6 for host_ns, _ in marks])


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def clock_offset_ms(transport: Transport) -> float:
    """Say how far this rank's clock is ahead of rank 0's; all ranks must call this together.

    On one machine they read the same clock; otherwise the fastest of a few round trips tells.
    """
    clocks = transport.share_object(_clock_name())
    if clocks[0] is not None and len(set(clocks)) == 1:
        return 0.0
    offset = 0.0
    for rank in range(1, transport.num_ranks):
        if transport.rank == 0:
            transport.send_object(_fastest_ping(transport, rank), rank)
        elif transport.rank == rank:
            for _ in range(_NUM_PINGS):
                transport.receive_object(0)
                transport.send_object(time.perf_counter_ns(), 0)
            offset = float(transport.receive_object(0))
    transport.flush()
    return offset


def _clock_name() -> str | None:
    """Name the clock that perf_counter reads; None where it is not known to be shared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{boot.strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None


def _fastest_ping(transport: Transport, rank: int) -> float:
    trips: list[tuple[int, float]] = []
    for _ in range(_NUM_PINGS):
        asked = time.perf_counter_ns()
        transport.send_object(None, rank)
        theirs = transport.receive_object(rank)
        answered = time.perf_counter_ns()
        trips.append((answered - asked, (theirs - (asked + answered) / 2) / 1e6))
    return min(trips)[1]
