"""How is a schedule written as JSON, and read back?

One line for each rank; ``W3@2`` is the W of microbatch 3 on stage 2::

    {
      "format": "zerobubble-schedule",
      "version": 1,
      "name": "mine",
      "placement": [0, 1],
      "num_microbatches": 1,
      "orders": [
        ["F0@0", "BW0@0"],
        ["F0@1", "B0@1", "W0@1"]
      ]
    }

``placement`` gives the rank of each stage. Any order of existing ops can be read, so that
``verify`` can say what is wrong with it.
"""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zerobubble.errors import UsageError
from zerobubble.formats.reading import parse_json, read_text, show_value, write_text
from zerobubble.ir import Codes, Kind, Op, Placement, Schedule

FORMAT, VERSION = "zerobubble-schedule", 1
KEYS = ("format", "version", "name", "placement", "num_microbatches", "orders")

_OP = re.compile(rf"({'|'.join(Kind.__members__)})([0-9]{{1,9}})@([0-9]{{1,9}})")
# A short file must not make the tables of all possible ops larger than memory.
_MOST_MISSING_OPS = 1_000_000


def dumps(schedule: Schedule) -> str:
    """Write a schedule as JSON text.

    >>> from zerobubble import build
    >>> print(dumps(build("1f1b", num_ranks=1, num_microbatches=2)).splitlines()[7].strip())
    ["F0@0", "BW0@0", "F1@0", "BW1@0"]
    """
    ranks = range(schedule.num_ranks)
    orders = ",\n    ".join(json.dumps([notation(op) for op in schedule.ops(r)]) for r in ranks)
    placement, num_microbatches = schedule.placement.stage_to_rank, schedule.num_microbatches
    head = (FORMAT, VERSION, schedule.name, placement, num_microbatches)
    values = [*map(json.dumps, head), f"[\n    {orders}\n  ]"]
    lines = (f'  "{key}": {value}' for key, value in zip(KEYS, values, strict=True))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str, source: str) -> Schedule:
    """Read a schedule from JSON text; ``source`` names it in errors.

    Raises:
        UsageError: the text is not JSON, or not of this format; the message names the place.

    >>> loads('{"format": "zerobubble-schedule", "version": 2}', "mine.json")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: mine.json: version is 2, but this release reads version 1
    """
    value = parse_json(text, source)
    try:
        return read_value(value)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def read_value(value: Any) -> Schedule:
    """Read a schedule from the value that its JSON text stands for.

    Raises:
        UsageError: the value is not of this format; the message names the place within it.
    """
    return _schedule(_checked_keys(value))


def save(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule to a JSON file.

    Raises:
        UsageError: the file cannot be written.
    """
    write_text(path, dumps(schedule))


def load(path: str | Path) -> Schedule:
    """Read a schedule from a JSON file.

    Raises:
        UsageError: the file cannot be read, or as for ``loads``.
    """
    return loads(read_text(path), str(path))


def _checked_keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(f"a schedule is an object with the keys {', '.join(KEYS)}, not {show_value(value)}")
    if value.get("format", FORMAT) != FORMAT:
        _fail(f"format is {show_value(value['format'])}, but a schedule has {FORMAT!r}")
    version = value.get("version", VERSION)
    if not _is_count(version) or version != VERSION:
        _fail(f"version is {show_value(version)}, but this release reads version {VERSION}")
    if missing := [key for key in KEYS if key not in value]:
        _fail(f"key {missing[0]!r} is missing: the keys are {', '.join(KEYS)}")
    if unknown := sorted(set(value) - set(KEYS)):
        _fail(f"unknown key {show_value(unknown[0])}: the keys are {', '.join(KEYS)}")
    return value


def _schedule(values: dict[str, Any]) -> Schedule:
    name, num_microbatches = _name(values["name"]), values["num_microbatches"]
    placement = _placement(values["placement"])
    if not _is_count(num_microbatches) or num_microbatches == 0:
        _fail(f"num_microbatches must be 1 or more, not {show_value(num_microbatches)}")
    orders = [_list(f"orders[{i}]", o) for i, o in enumerate(_list("orders", values["orders"]))]
    if len(orders) != placement.num_ranks:
        ranks = f"placement has {placement.num_ranks} ranks: give one list for each rank"
        _fail(f"orders has {len(orders)} lists, but {ranks}")
    num_ops = sum(map(len, orders))
    if placement.num_stages * num_microbatches > max(_MOST_MISSING_OPS, num_ops):
        _fail(
            f"num_microbatches is {show_value(num_microbatches)}, but orders has only {num_ops} "
            "ops: write how many microbatches the ops name"
        )
    shape = (placement.num_stages, num_microbatches)
    codes = tuple(_order(rank, order, *shape) for rank, order in enumerate(orders))
    return Schedule(name, placement, num_microbatches, codes)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        _fail(f"name must be a text of printable characters, not {show_value(value)}")
    return value


def _placement(value: Any) -> Placement:
    for stage, rank in enumerate(_list("placement", value)):
        if not _is_count(rank):
            _fail(f"placement[{stage}] must be the number of a rank, not {show_value(rank)}")
    if not value or max(value) >= len(value):
        problem = "must name every rank from 0 to the largest at least once"
        _fail(f"placement {show_value(value)} {problem}")
    return Placement(tuple(value))


def _order(rank: int, ops: list[Any], num_stages: int, num_microbatches: int) -> Codes:
    codes = np.empty(len(ops), dtype=np.int64)
    for index, text in enumerate(ops):
        kind, stage, microbatch = read_op(
            text, f"orders[{rank}][{index}]", num_stages, num_microbatches
        )
        codes[index] = (kind * num_stages + stage) * num_microbatches + microbatch
    return codes


def read_op(text: Any, place: str, num_stages: int, num_microbatches: int) -> Op:
    """Read an op from its notation, such as ``W3@2``; ``place`` names it in errors.

    Raises:
        UsageError: it is no op, or one of a stage or microbatch that does not exist.
    """
    match = _OP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        _fail(
            f"{place}: {show_value(text)} is not an op: write kind, microbatch and stage, like W3@2"
        )
    op = Op(Kind[match[1]], microbatch=int(match[2]), stage=int(match[3]))
    if op.stage >= num_stages or op.microbatch >= num_microbatches:
        there_are = f"stages 0..{num_stages - 1} and microbatches 0..{num_microbatches - 1}"
        _fail(f"{place}: {show_value(text)} does not exist: there are {there_are}")
    return op


def _list(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _fail(f"{place} must be a list, not {show_value(value)}")
    return value


def notation(op: Op) -> str:
    """Write an op in a few characters: ``W3@2`` is the W of microbatch 3 on stage 2."""
    return f"{op.kind.name}{op.microbatch}@{op.stage}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _fail(problem: str) -> NoReturn:
    raise UsageError(problem)
