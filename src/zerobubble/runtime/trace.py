"""When did every op really run? Recorded on each rank, gathered into measured timelines."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Kind, Schedule
from zerobubble.runtime.transport import Transport
from zerobubble.simulate import Timeline

_NUM_PINGS = 5


Mark = int | torch.cuda.Event


class Recorder:
    """Records the start and end of every op of the last steps on one rank.

    On CUDA the times are those of the device, taken with events, and nothing waits for them until
    they are read.
    """

    def __init__(self, device: torch.device, num_steps: int) -> None:
        self._mark: Callable[[], Mark] = time.perf_counter_ns
        if device.type == "cuda":
            self._mark = _record_event
        self._marks: list[Mark] = []
        self._steps: deque[tuple[int, Mark, list[Mark]]] = deque(maxlen=num_steps)

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def begin_step(self) -> None:
        """Start to record a new step."""
        self._marks = []
        self._steps.append((time.perf_counter_ns(), self._mark(), self._marks))

    def begin_again(self) -> None:
        """Forget the ops of this step that ran so far."""
        self._marks.clear()

    def run(self, op: Callable[[int], None], microbatch: int) -> None:
        """Run an op and record its start and end."""
        self._marks.append(self._mark())
        op(microbatch)
        self._marks.append(self._mark())

    def steps_ms(self) -> list[tuple[Floats, Floats]]:
        """Give starts and ends in milliseconds of this rank's clock, one pair for each step."""
        return [_split(_to_ms(*step)) for step in self._steps]


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _to_ms(host_ns: int, origin: Mark, marks: list[Mark]) -> Floats:
    if isinstance(origin, int):
        return np.asarray(marks, dtype=np.float64) / 1e6
    torch.cuda.synchronize()
    events = [mark for mark in marks if isinstance(mark, torch.cuda.Event)]
    return np.array([host_ns / 1e6 + origin.elapsed_time(event) for event in events])


def _split(marks: Floats) -> tuple[Floats, Floats]:
    return marks[0::2], marks[1::2]


def gather_timelines(
    recorder: Recorder, schedule: Schedule, transport: Transport
) -> list[Timeline]:
    """Collect the recorded steps of all ranks as timelines on rank 0; the others get none.

    Times are in milliseconds, 0 at the first op of each step; the clocks of the ranks are aligned
    to within half of a message's round trip. All ranks must call this together.
    """
    offset_ms = _clock_offset_ms(transport)
    steps = [(start - offset_ms, end - offset_ms) for start, end in recorder.steps_ms()]
    gathered = transport.gather_object(steps)
    if gathered is None:
        return []
    return [_timeline(schedule, of_ranks) for of_ranks in zip(*gathered, strict=False)]


def _timeline(schedule: Schedule, of_ranks: tuple[tuple[Floats, Floats], ...]) -> Timeline:
    origin = min((float(start[0]) for start, _ in of_ranks if len(start)), default=0.0)
    costs = Costs.of_ranks(schedule.placement)
    starts, ends = zip(*of_ranks, strict=True)
    return Timeline(
        schedule,
        costs,
        tuple(start - origin for start in starts),
        tuple(end - origin for end in ends),
    )


def _clock_offset_ms(transport: Transport) -> float:
    """Say how far this rank's clock is ahead of rank 0's, from the fastest of a few round trips."""
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


def _fastest_ping(transport: Transport, rank: int) -> float:
    trips: list[tuple[int, float]] = []
    for _ in range(_NUM_PINGS):
        asked = time.perf_counter_ns()
        transport.send_object(None, rank)
        theirs = transport.receive_object(rank)
        answered = time.perf_counter_ns()
        trips.append((answered - asked, (theirs - (asked + answered) / 2) / 1e6))
    return min(trips)[1]


def measured_costs(timelines: Sequence[Timeline], expected: Costs | None = None) -> Costs:
    """Take the median duration of every stage's F, B and W from measured timelines, in ms.

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

    return Costs(
        of_kind(Kind.F, share),
        of_kind(Kind.B, share),
        of_kind(Kind.W, 1 - share),
        base.transfer,
        base.activation,
        base.activation_kept,
    )
