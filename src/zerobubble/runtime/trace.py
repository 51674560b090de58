"""When did every op and every send really happen? Recorded on each rank, gathered into one run."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from zerobubble.costs import Costs, Floats
from zerobubble.graph import crossings
from zerobubble.ir import Kind, Schedule
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.runtime.clock import Clock, EventClock, HostClock, clock_offset_ms
from zerobubble.runtime.offload.marks import CopyMarks
from zerobubble.runtime.transport import Transport
from zerobubble.simulate import Timeline
from zerobubble.waits import lanes_of

Call = Callable[[], object]


class RecordedStep(NamedTuple):
    """What one rank noted in one step, in ms of its own clock.

    Attributes:
        number: of the step.
        start: of every op on the device, in the rank's order.
        end: likewise.
        host_start: likewise on the host.
        host_end: likewise.
        sent: when every message to another rank was sent, in the order of the ops they come from;
            empty where it leaves at the end of its op.
        num_bytes: likewise how large it was.
        copies_out: begin and end of every copy to the host, in the order of their forwards, shape
            (copies, 2); empty where they are those of ``start`` and ``end``.
        copies_back: likewise back, in the order of the rank.
    """

    number: int
    start: Floats
    end: Floats
    host_start: Floats
    host_end: Floats
    sent: Floats
    num_bytes: list[int]
    copies_out: Floats = np.empty((0, 2))
    copies_back: Floats = np.empty((0, 2))


@dataclass
class _Noted:
    """The marks of a step: two for each op and copy, one for each message that it sends."""

    number: int
    of_ops: list[Any] = field(default_factory=list)
    of_sends: list[Any] = field(default_factory=list)
    of_copies: tuple[list[Any], list[Any]] = ([], [])
    sizes: Callable[[], list[int]] = list
    device_ops: Floats | None = None


class Recorder:
    """Records on one rank when the ops and sends of some steps happen.

    A mark costs the hot path a reading of the clock and an addition to a list, on CUDA an event.
    All else is done when the steps are read or, where a range of steps was chosen, after its end.

    Args:
        device: on which the ops run.
        steps: of how many last steps to tell, or the numbers of the steps.

    Attributes:
        copies: takes the marks of the copies, which are not made where O and L stand.
    """

    def __init__(self, device: torch.device, steps: int | range) -> None:
        self.steps = steps
        self._clock: Clock = EventClock() if device.type == "cuda" else HostClock()
        self._mark = self._clock.mark
        num_steps = min(steps if isinstance(steps, int) else len(steps), sys.maxsize)
        self._noted: deque[_Noted] = deque(maxlen=num_steps)
        self._read: deque[RecordedStep] = deque(maxlen=num_steps)
        self._now: _Noted = _Noted(0)
        self.copies = CopyMarks()

    def clear(self) -> None:
        """Forget all steps."""
        self._noted.clear()
        self._read.clear()

    def begin_step(self, number: int) -> bool:
        """Begin a step; say whether it is to be recorded."""
        if isinstance(self.steps, range):
            if number == self.steps.stop:
                self.steps_ms()  # as long as the clocks of host and device agree
            is_wanted = number in self.steps
        else:
            is_wanted = self.steps > 0
        if is_wanted:
            self._now = _Noted(number)
        self.copies.record(self._mark if is_wanted else None)
        return is_wanted

    def begin_again(self) -> None:
        """Forget what happened in this step so far."""
        self._now.of_ops.clear()
        self._now.of_sends.clear()
        self.copies.record(self._mark)

    def end_step(self, sizes: Callable[[], list[int]]) -> None:
        """Keep the step; ``sizes`` tells the bytes of all its messages when asked."""
        self._now.sizes = sizes
        self._now.of_copies = self.copies.out, self.copies.back
        self.copies.record(None)
        self._noted.append(self._now)

    def run(self, op: Call) -> None:
        """Run an op, and mark its start and its end."""
        marks, mark = self._now.of_ops, self._mark
        marks.append(mark())
        op()
        marks.append(mark())

    def send(self, send: Call) -> None:
        """Mark that a message is sent now, and send it."""
        self._now.of_sends.append(self._mark())
        send()

    def put_device_times(self, ops: Sequence[tuple[float, float]]) -> None:
        """Take the last step's times of an emulated device: start and end of every op, in ms.

        Its messages leave at the ends of their ops, however late the host is.
        """
        if self._noted:
            last = self._noted[-1]
            last.device_ops = np.array(ops[-len(last.of_ops) // 2 :])
            last.of_sends.clear()
            last.of_copies = [], []

    def steps_ms(self) -> list[RecordedStep]:
        """Give the recorded steps in the order in which they ran."""
        self._read.extend(map(self._in_ms, self._noted))
        self._noted.clear()
        return list(self._read)

    def _in_ms(self, noted: _Noted) -> RecordedStep:
        parts = (noted.of_ops, noted.of_sends, *noted.of_copies)
        all_device_ms = self._clock.device_ms([mark for part in parts for mark in part])
        ends = np.cumsum([len(part) for part in parts])[:-1]
        device, sent, *copies = np.split(all_device_ms, ends)
        if noted.device_ops is not None:
            device = noted.device_ops.reshape(-1)
        host = self._clock.host_ms(noted.of_ops)
        times = (device[0::2], device[1::2], host[0::2], host[1::2])
        out, back = (each.reshape(-1, 2) for each in copies)
        return RecordedStep(noted.number, *times, sent, noted.sizes(), out, back)


def gather_run(
    recorder: Recorder, schedule: Schedule, transport: Transport, expected: Costs | None
) -> MeasuredRun | None:
    """Collect the recorded steps of all ranks on rank 0; the others get None.

    Times are in ms, 0 at the first op of each step. The clocks of ranks on different machines are
    aligned to within half of a message's round trip. All ranks must call this together.
    """
    offset_ms = clock_offset_ms(transport)
    gathered = transport.gather_object([_earlier(step, offset_ms) for step in recorder.steps_ms()])
    if gathered is None:
        return None
    steps = [_step(schedule, of_ranks, expected) for of_ranks in zip(*gathered, strict=False)]
    return MeasuredRun(schedule, expected, tuple(steps))


def _earlier(step: RecordedStep, ms: float) -> RecordedStep:
    sides = ("start", "end", "host_start", "host_end", "sent", "copies_out", "copies_back")
    return step._replace(**{side: getattr(step, side) - ms for side in sides})


def _step(
    schedule: Schedule, of_ranks: Sequence[RecordedStep], expected: Costs | None
) -> MeasuredStep:
    origin = min((float(step.start[0]) for step in of_ranks if len(step.start)), default=0.0)
    steps = [
        _with_copies(_earlier(step, origin), schedule, rank) for rank, step in enumerate(of_ranks)
    ]
    start, end, host_start, host_end = (
        tuple(getattr(step, side) for step in steps)
        for side in ("start", "end", "host_start", "host_end")
    )
    costs = expected or Costs.of_ranks(schedule.placement)
    timeline = Timeline(schedule, costs, start, end)
    transfers = tuple(_transfers(timeline, steps))
    return MeasuredStep(steps[0].number, timeline, host_start, host_end, transfers)


def _with_copies(step: RecordedStep, schedule: Schedule, rank: int) -> RecordedStep:
    """Put the times of the copies in place of when the device came to O and L."""
    start, end = step.start.copy(), step.end.copy()
    _, out, back = lanes_of(schedule, rank)
    for lane, times in ((out, step.copies_out), (back, step.copies_back)):
        if len(times) == len(lane):
            start[lane], end[lane] = times[:, 0], times[:, 1]
    return step._replace(start=start, end=end)


def _transfers(timeline: Timeline, of_ranks: Sequence[RecordedStep]) -> Iterator[Transfer]:
    """Pair what the senders noted with the ops that read it.

    A rank waits for a message right before the op that reads it, which therefore starts as soon as
    that wait is over.
    """
    schedule, holders = timeline.schedule, timeline.schedule.placement.stage_to_rank
    start, end = np.zeros((2, schedule.num_codes))
    for rank, order in enumerate(schedule.orders):
        start[order], end[order] = timeline.start[rank], timeline.end[rank]
    sent = [iter(step.sent.tolist()) for step in of_ranks]
    num_bytes = [iter(step.num_bytes) for step in of_ranks]
    for code, reading in zip(*crossings(schedule), strict=True):
        op, reader = schedule.op(code), holders[schedule.op(reading).stage]
        sender = holders[op.stage]
        sent_at = next(sent[sender], float(end[code]))
        arrived = max(sent_at, float(start[reading]))  # clocks agree but for half a round trip
        yield Transfer(op, sender, reader, sent_at, arrived, next(num_bytes[sender]))


def measured_costs(timelines: Sequence[Timeline], expected: Costs | None = None) -> Costs:
    """Take the median duration of every stage's ops from measured timelines, in ms.

    What is not measured is as in ``expected``: transfers, activations, and how BW divides into B
    and W. By default transfers are left out, activations are even shares of a rank, and BW counts
    half as B and half as W.
    """
    schedule = timelines[0].schedule
    base = expected or timelines[0].costs
    samples: dict[tuple[int, int], list[float]] = {}
    for timeline in timelines:
        for rank, order in enumerate(schedule.orders):
            kinds, stages, _ = schedule.fields(order)
            lasting = timeline.end[rank] - timeline.start[rank]
            for kind, stage, ms in zip(kinds.tolist(), stages.tolist(), lasting, strict=True):
                samples.setdefault((kind, stage), []).append(float(ms))
    median = {key: float(np.median(values)) for key, values in samples.items()}
    whole = base.backward_input + base.backward_weight
    halves = np.full(schedule.num_stages, 0.5)
    share = np.divide(base.backward_input, whole, out=halves, where=whole > 0)

    def of_kind(kind: Kind, part: Floats) -> Floats:
        of_whole = [median.get((Kind.BW, s), 0.0) * part[s] for s in range(schedule.num_stages)]
        return np.array([median.get((kind, s), of_whole[s]) for s in range(schedule.num_stages)])

    def or_expected(kind: Kind, expected: Floats) -> Floats:
        return np.array([median.get((kind, s), each) for s, each in enumerate(expected.tolist())])

    return replace(
        base,
        forward=of_kind(Kind.F, share),
        backward_input=of_kind(Kind.B, share),
        backward_weight=of_kind(Kind.W, 1 - share),
        offload=or_expected(Kind.O, base.offload),
        load=or_expected(Kind.L, base.load),
        recompute=or_expected(Kind.R, base.recompute),
    )
