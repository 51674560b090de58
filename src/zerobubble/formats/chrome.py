"""How do Perfetto and chrome://tracing read a timeline? As JSON in the trace event format.

Each rank is a process with a track of its ops, one for each direction of its copies if it has any,
one of what it sends, one of what it receives and a counter of its activation memory; arrows lead
from send to receive. Where the host of a measured step issued its ops at other times than the
device ran them, it has a track too. Times are microseconds from the first event; a simulated unit
of time counts as a millisecond.

A rank sends and receives several messages at once, but slices of one track must not overlap: a send
lasts until its message has arrived or the next one is sent, a receive from when its message is sent
or the one before has arrived.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np

from zerobubble.costs import Floats
from zerobubble.graph import crossings
from zerobubble.ir import Kind, Op
from zerobubble.measured import MeasuredStep, Transfer
from zerobubble.simulate import Timeline

_OPS, _OUT, _IN, _SENDS, _RECEIVES, _HOST = range(6)
_TRACKS = {
    _OPS: "ops",
    _OUT: "copy out",
    _IN: "copy in",
    _SENDS: "sends",
    _RECEIVES: "receives",
    _HOST: "host",
}
_TRACK_OF_KIND = {Kind.O: _OUT, Kind.L: _IN}
_KIND_OF_TRACK = {track: kind for kind, track in _TRACK_OF_KIND.items()}
_COUNTER = "activation memory"
_US_PER_UNIT = 1000.0
# A slice of no length would hold no end of an arrow.
_SHORTEST_US = 1.0
_NUM_DIGITS = 3

Event = dict[str, Any]
Slice = tuple[float, float]
OpTimes = list[tuple[Floats, Floats]]


def dumps(shown: Timeline | MeasuredStep) -> str:
    """Write a simulated timeline or a measured step as a trace.

    >>> from zerobubble import Costs, build, simulate
    >>> timeline = simulate(build("1f1b", num_ranks=2, num_microbatches=1), Costs.uniform(2))
    >>> trace = json.loads(dumps(timeline))
    >>> sorted({event["ph"] for event in trace["traceEvents"]})
    ['C', 'M', 'X', 'f', 's']
    """
    timeline = shown.timeline if isinstance(shown, MeasuredStep) else shown
    metadata = {"schedule": timeline.schedule.name, "placement": str(timeline.schedule.placement)}
    if isinstance(shown, MeasuredStep):
        metadata["step"] = str(shown.number)
    lines = ",\n".join(json.dumps(event) for event in trace_events(shown))
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(metadata)}, "traceEvents": [\n'
        f"{lines}\n]}}\n"
    )


def trace_events(shown: Timeline | MeasuredStep) -> list[Event]:
    """List the events of a trace: names first, then all others in the order of their times."""
    if isinstance(shown, MeasuredStep):
        host = list(zip(shown.host_start, shown.host_end, strict=True))
        trace = _Trace(shown.timeline, shown.transfers, host)
    else:
        trace = _Trace(shown, tuple(_simulated_transfers(shown)), [])
    # What takes no time comes first of what starts together, or it would overlap with the others.
    in_time = sorted(trace.timed(), key=lambda event: (event["ts"], event.get("dur", 0.0)))
    return [*trace.names(), *in_time]


def _simulated_transfers(timeline: Timeline) -> Iterator[Transfer]:
    """Yield the messages of a timeline, sent as soon as their op ends."""
    schedule = timeline.schedule
    ends = np.zeros(schedule.num_codes)
    for order, end in zip(schedule.orders, timeline.end, strict=True):
        ends[order] = end
    holders = schedule.placement.stage_to_rank
    for code, reader in zip(*crossings(schedule), strict=True):
        op, reading = schedule.op(code), schedule.op(reader)
        sent = float(ends[code])
        arrived = sent + float(timeline.costs.transfer[min(op.stage, reading.stage)])
        yield Transfer(op, holders[op.stage], holders[reading.stage], sent, arrived, num_bytes=0)


@dataclass(frozen=True)
class _Trace:
    """What a trace is made of; ``host`` has the start and end of every op on each rank's host."""

    timeline: Timeline
    transfers: Sequence[Transfer]
    host: OpTimes

    @cached_property
    def device(self) -> OpTimes:
        return list(zip(self.timeline.start, self.timeline.end, strict=True))

    @cached_property
    def host_differs(self) -> bool:
        return any(map(_differ, self.host, self.device))

    @cached_property
    def origin(self) -> float:
        shown = [*self.device, *self.host]
        first = min(float(start.min()) for start, _ in shown if len(start))
        return min([first, *(transfer.sent for transfer in self.transfers)])

    def us(self, time: float) -> float:
        return round((time - self.origin) * _US_PER_UNIT, _NUM_DIGITS)

    def names(self) -> Iterator[Event]:
        """Yield the names of processes and tracks, and their order."""
        for rank in range(self.timeline.schedule.num_ranks):
            yield _name("process_name", rank, name=f"rank {rank}")
            yield _name("process_sort_index", rank, sort_index=rank)
            for track, name in _TRACKS.items():
                if self.has(track, rank):
                    yield _name("thread_name", rank, track, name=name)
                    yield _name("thread_sort_index", rank, track, sort_index=track)

    def has(self, track: int, rank: int) -> bool:
        """Say whether there is a track of a rank."""
        if track == _HOST:
            return self.host_differs
        if track not in _KIND_OF_TRACK:
            return True
        kinds, _, _ = self.timeline.schedule.fields(self.timeline.schedule.orders[rank])
        return bool((kinds == _KIND_OF_TRACK[track]).any())

    def timed(self) -> Iterator[Event]:
        """Yield all events that have a time; the slices before the arrows that they hold."""
        yield from self.ops(self.device, _OPS)
        if self.host_differs:
            yield from self.ops(self.host, _HOST)
        yield from self.messages()
        for rank in range(self.timeline.schedule.num_ranks):
            yield from self.memory(rank)

    def ops(self, times: OpTimes, track: int) -> Iterator[Event]:
        for rank, (starts, ends) in enumerate(times):
            ops = self.timeline.schedule.ops(rank)
            for op, start, end in zip(ops, starts.tolist(), ends.tolist(), strict=True):
                name = f"{op.kind.name}{op.microbatch}"
                place = self.us(start), self.us(end)
                own = _TRACK_OF_KIND.get(op.kind, track) if track == _OPS else track
                yield _slice(name, op, place, rank, own)

    def messages(self) -> Iterator[Event]:
        """Yield for each message the slices of sender and reader and the arrow between them."""
        sends, receives = self.slices_of_messages()
        for number, transfer in enumerate(self.transfers):
            op, sender, reader = transfer.op, transfer.sender, transfer.reader
            values = {"bytes": transfer.num_bytes} if transfer.num_bytes else {}
            values |= {"sender": sender, "reader": reader}
            name, (begin, _), (_, end) = _output(op), sends[number], receives[number]
            yield _slice(name, op, sends[number], sender, _SENDS, **values)
            yield _slice(name, op, receives[number], reader, _RECEIVES, **values)
            arrow = {"name": name, "cat": "messages", "id": number}
            yield {"ph": "s", "pid": sender, "tid": _SENDS, "ts": begin, **arrow}
            inside = round(end - _SHORTEST_US / 2, _NUM_DIGITS)
            yield {"ph": "f", "bp": "e", "pid": reader, "tid": _RECEIVES, "ts": inside, **arrow}

    def slices_of_messages(self) -> tuple[list[Slice], list[Slice]]:
        """Place the slices of all sends and receives so that none overlap on a track."""
        times = [(self.us(each.sent), self.us(each.arrived)) for each in self.transfers]
        senders = [each.sender for each in self.transfers]
        sends = _one_after_the_other(times, senders, by_end=False)
        begun = [(begin, arrived) for (begin, _), (_, arrived) in zip(sends, times, strict=True)]
        readers = [each.reader for each in self.transfers]
        return sends, _one_after_the_other(begun, readers, by_end=True)

    def memory(self, rank: int) -> Iterator[Event]:
        """Yield the activation memory of a rank at every change, once for each time."""
        times, values = self.timeline.memory_curve(rank)
        curve = {self.us(time): value for time, value in zip(times, values.tolist(), strict=True)}
        for ts, value in curve.items():
            counter = {"ph": "C", "name": _COUNTER, "pid": rank, "ts": ts}
            yield {**counter, "args": {"activations": round(value, 9)}}


def _differ(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> bool:
    return not all(map(np.array_equal, one, other))


def _output(op: Op) -> str:
    """Name what an op sends to another rank."""
    what = "activation" if op.kind is Kind.F else "gradient"
    return f"{what} of {op.kind.name}{op.microbatch}"


def _name(what: str, rank: int, track: int = _OPS, **values: object) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": values}


def _slice(name: str, op: Op, place: Slice, rank: int, track: int, **values: object) -> Event:
    begin, end = place
    return {
        "ph": "X",
        "name": name,
        "cat": _TRACKS[track],
        "pid": rank,
        "tid": track,
        "ts": begin,
        "dur": round(end - begin, _NUM_DIGITS),
        "args": {"stage": op.stage, "microbatch": op.microbatch, **values},
    }


def _one_after_the_other(
    wanted: Sequence[Slice], ranks: Sequence[int], by_end: bool
) -> list[Slice]:
    """Shorten slices that overlap on the track of their rank, but none below the shortest.

    In the order of their ends a slice begins where the one before ends; in that of their
    beginnings it ends where the next one begins.
    """
    order = sorted(range(len(wanted)), key=lambda i: (ranks[i], wanted[i][by_end], i))
    placed, free, track = list(wanted), 0.0, -1
    for index, following in zip_longest(order, order[1:]):
        begin, end = wanted[index]
        begin = max(begin, free) if ranks[index] == track else begin
        if not by_end and following is not None and ranks[following] == ranks[index]:
            end = min(end, wanted[following][0])
        free = max(end, round(begin + _SHORTEST_US, _NUM_DIGITS))
        placed[index], track = (begin, free), ranks[index]
    return placed
