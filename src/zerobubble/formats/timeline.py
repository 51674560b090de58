"""How is a measured run written as JSON, and read back?

The schedule that ran, what was expected of it, and for each recorded step the starts and ends of
every rank's ops, in the rank's order, in milliseconds::

    {"format": "zerobubble-timeline", "version": 2, "unit": "ms", "schedule": {...}, "costs": null,
     "steps": [
      {"number": 17,
       "start": [[0.0, 1.5], [1.6, 3.1]], "end": [[1.5, 3.0], [3.1, 4.6]],
       "host_start": [[0.0, 1.5], [1.6, 3.1]], "host_end": [[1.5, 3.0], [3.1, 4.6]],
       "transfers": [{"op": "F0@0", "sender": 0, "reader": 1, "sent": 1.5, "arrived": 1.6,
                      "bytes": 4096}]}
     ]}

``costs`` are the expected ones in ms, with the keys of a costs file, or null. ``host_start`` and
``host_end`` say when the host issued an op, ``start`` and ``end`` when the device ran it, or of O
and L, which run beside the others, when the copy was made. Version 1
had neither these nor ``number``, ``costs`` and ``transfers``; it is still read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.formats.json import dumps as dumps_schedule
from zerobubble.formats.json import notation, read_op, read_value
from zerobubble.formats.reading import parse_json, read_text, show_value, write_text
from zerobubble.ir import Codes, Kind, Op, Schedule
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.simulate import Timeline
from zerobubble.verify import verify
from zerobubble.waits import lanes_of

FORMAT, VERSION = "zerobubble-timeline", 2
_KEYS = {
    1: ("format", "version", "unit", "schedule", "steps"),
    2: ("format", "version", "unit", "schedule", "costs", "steps"),
}
_STEP_KEYS = {
    1: ("start", "end"),
    2: ("number", "start", "end", "host_start", "host_end", "transfers"),
}
_TRANSFER_KEYS = ("op", "sender", "reader", "sent", "arrived", "bytes")
_TIMES = ("start", "end", "host_start", "host_end")
_LARGEST = 1e100
_NUM_DIGITS = 6


def dumps(run: MeasuredRun) -> str:
    """Write a measured run as JSON text, one line for each step, times to the nanosecond."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "unit": "ms",
        "schedule": json.loads(dumps_schedule(run.schedule)),
        "costs": run.costs and run.costs.to_dict(),
    }
    steps = ",\n".join(json.dumps(_step_value(step)) for step in run.steps)
    return f'{json.dumps(head)[:-1]},\n"steps": [\n{steps}\n]}}\n'


def loads(text: str, source: str) -> MeasuredRun:
    """Read a measured run from JSON text; ``source`` names it in errors.

    Raises:
        UsageError: the text is not JSON, or not of this format; the message names the place.

    >>> loads('{"format": "zerobubble-timeline", "version": 3}', "run/timeline.json")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: run/timeline.json: version is 3, but this release reads 1 and 2
    """
    value = parse_json(text, source)
    try:
        return _run(value)
    except (UsageError, ScheduleError) as error:
        raise UsageError(f"{source}: {error}") from None


def save(run: MeasuredRun, path: str | Path) -> None:
    """Write a measured run to a JSON file.

    Raises:
        UsageError: the file cannot be written.
    """
    write_text(path, dumps(run))


def load(path: str | Path) -> MeasuredRun:
    """Read a measured run from a JSON file.

    Raises:
        UsageError: the file cannot be read, or as for ``loads``.
    """
    return loads(read_text(path), str(path))


def _step_value(step: MeasuredStep) -> dict[str, Any]:
    timeline = step.timeline
    columns = (timeline.start, timeline.end, step.host_start, step.host_end)
    rounded = ([times.round(_NUM_DIGITS).tolist() for times in column] for column in columns)
    return {
        "number": step.number,
        **dict(zip(_TIMES, rounded, strict=True)),
        "transfers": [_transfer_value(transfer) for transfer in step.transfers],
    }


def _transfer_value(transfer: Transfer) -> dict[str, Any]:
    return {
        "op": notation(transfer.op),
        "sender": transfer.sender,
        "reader": transfer.reader,
        "sent": round(transfer.sent, _NUM_DIGITS),
        "arrived": round(transfer.arrived, _NUM_DIGITS),
        "bytes": transfer.num_bytes,
    }


def _run(value: Any) -> MeasuredRun:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        _fail(f'this is no measured timeline: it has no "format": "{FORMAT}"')
    version = value.get("version")
    if type(version) is not int or version not in _KEYS:
        _fail(f"version is {show_value(version)}, but this release reads 1 and 2")
    _require_keys("a timeline", value, _KEYS[version])
    if value["unit"] != "ms":
        _fail(f"unit must be 'ms', not {show_value(value['unit'])}")
    if value["schedule"] is None:
        _fail("no step was recorded: run again with --trace-steps 1 or more")
    schedule = _located("schedule", read_value, value["schedule"])
    verify(schedule)
    costs = _costs(value.get("costs"), schedule)
    steps = _list("steps", value["steps"])
    for index, step in enumerate(steps):
        _require_keys(f"steps[{index}]", step, _STEP_KEYS[version])
    read = (
        _located(f"steps[{index}]", _step, {"number": index + 1} | step, schedule, costs)
        for index, step in enumerate(steps)
    )
    run = MeasuredRun(schedule, costs, tuple(read))
    numbers = [step.number for step in run.steps]
    if numbers != sorted(set(numbers)):
        _fail(f"the steps have the numbers {show_value(numbers)}, which must rise")
    return run


def _costs(value: Any, schedule: Schedule) -> Costs | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        _fail(f"costs must be an object or null, not {show_value(value)}")
    return Costs.from_dict(value, schedule.placement)


def _step(values: Mapping[str, Any], schedule: Schedule, costs: Costs | None) -> MeasuredStep:
    start, end = (_times(key, values[key], schedule) for key in ("start", "end"))
    host_start, host_end = (
        _times(key, values[key], schedule) if key in values else device
        for key, device in (("host_start", start), ("host_end", end))
    )
    for rank, order in enumerate(schedule.orders):
        for lane in lanes_of(schedule, rank):
            _require_order("", start[rank], end[rank], lane, schedule, rank)
        if "host_start" in values:
            whole, host = np.arange(len(order)), (host_start[rank], host_end[rank])
            _require_order("host of ", *host, whole, schedule, rank)
    timeline = Timeline(schedule, costs or Costs.of_ranks(schedule.placement), start, end)
    transfers = _list("transfers", values.get("transfers", []))
    read = (
        _located(f"transfers[{index}]", _transfer, transfer, schedule)
        for index, transfer in enumerate(transfers)
    )
    number = _count("number", values["number"])
    return MeasuredStep(number, timeline, host_start, host_end, _without_doubles(read))


def _times(key: str, value: Any, schedule: Schedule) -> tuple[Floats, ...]:
    """Read the times of all ranks, one for each op."""
    of_ranks = _list(key, value)
    if len(of_ranks) != schedule.num_ranks:
        _fail(f"{key} has {len(of_ranks)} lists for {schedule.num_ranks} ranks")
    found = []
    for rank, times in enumerate(of_ranks):
        place, num_ops = f"{key}[{rank}]", len(schedule.orders[rank])
        if len(_list(place, times)) != num_ops:
            _fail(f"{place} has {len(times)} times for {num_ops} ops")
        found.append(np.array([_time(place, time) for time in times], dtype=np.float64))
    return tuple(found)


def _require_order(
    what: str, start: Floats, end: Floats, lane: Codes, schedule: Schedule, rank: int
) -> None:
    """Refuse ops that end before they start, or overlap with those of their rank or engine."""
    marks = np.column_stack((start[lane], end[lane])).reshape(-1)
    if len(falls := np.flatnonzero(np.diff(marks) < 0)):
        place, is_end = divmod(int(falls[0]) + 1, 2)
        index = int(lane[place])
        op = f"{schedule.op(schedule.orders[rank][index])} (op {index})"
        problem = "ends before it starts" if is_end else "starts before the op ahead of it ends"
        _fail(f"{what}rank {rank}: {op} {problem}: times must not fall along a rank's order")


def _transfer(value: Any, schedule: Schedule) -> Transfer:
    _require_keys("it", value, _TRANSFER_KEYS)
    op = read_op(value["op"], "op", schedule.num_stages, schedule.num_microbatches)
    sender, reader = (_count(key, value[key]) for key in ("sender", "reader"))
    if (sender, reader) != _ends(op, schedule):
        _fail(f"the output of {op} does not travel from rank {sender} to rank {reader}")
    sent, arrived = (_time(key, value[key]) for key in ("sent", "arrived"))
    if arrived < sent:
        _fail(f"the output of {op} arrived at {arrived}, before it was sent at {sent}")
    return Transfer(op, sender, reader, sent, arrived, _count("bytes", value["bytes"]))


def _without_doubles(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    found: dict[Op, Transfer] = {}
    for index, transfer in enumerate(transfers):
        if transfer.op in found:
            _fail(f"transfers[{index}]: the output of {transfer.op} travels twice: delete one")
        found[transfer.op] = transfer
    return tuple(found.values())


def _ends(op: Op, schedule: Schedule) -> tuple[int, int] | None:
    """Name the ranks between which the output of an op travels."""
    neighbour = op.stage + 1 if op.kind is Kind.F else op.stage - 1
    if op.kind not in (Kind.F, Kind.B, Kind.BW) or not 0 <= neighbour < schedule.num_stages:
        return None
    holders = schedule.placement.stage_to_rank
    return holders[op.stage], holders[neighbour]


def _require_keys(place: str, value: Any, keys: Sequence[str]) -> None:
    if not isinstance(value, dict):
        _fail(f"{place} must be an object, not {show_value(value)}")
    if missing := [key for key in keys if key not in value]:
        _fail(f"{place} has no key {missing[0]!r}: its keys are {', '.join(keys)}")
    if unknown := sorted(set(value) - set(keys)):
        _fail(
            f"{place} has an unknown key {show_value(unknown[0])}: its keys are {', '.join(keys)}"
        )


def _located(place: str, read: Any, *values: Any) -> Any:
    """Read a part of the file; what is wrong with it is told with its place."""
    try:
        return read(*values)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def _list(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _fail(f"{place} must be a list, not {show_value(value)}")
    return value


def _time(place: str, value: Any) -> float:
    if type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
        _fail(f"{place}: {show_value(value)} is not a time in ms")
    return float(value)


def _count(place: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        _fail(f"{place} must be a whole number of 0 or more, not {show_value(value)}")
    return value


def _fail(problem: str) -> NoReturn:
    raise UsageError(problem)
