"""How is a plan written as JSON, and read back?

Times are in ms and sizes in bytes; the schedule is as in ``formats.json``, the costs as in
``Costs.to_dict``::

    {
      "format": "zerobubble-plan",
      "version": 1,
      "model": "mine",
      "microbatch_size": 2,
      "validate": "post",
      "layer_names": ["embedding", "block 0", "head"],
      "layers_per_stage": [2, 1],
      "memory_bytes": [8e9, 8e9],
      "costs": {"forward": [1.0, 1.0], ...},
      "forecast": {"step_ms": 52.0, ...},
      "reasons": ["rank 1 is the bottleneck: head"],
      "schedule": {"format": "zerobubble-schedule", ...}
    }

``memory_bytes`` is null without a limit; so is the number of a rank that has none.
"""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.formats import json as schedules
from zerobubble.formats.checking import (
    a_count,
    a_list,
    a_number,
    a_text,
    an_object,
    fail,
    with_keys,
)
from zerobubble.formats.reading import parse_json, read_text, show_value, write_text
from zerobubble.plan.data import Forecast, Plan
from zerobubble.verify import verify

FORMAT, VERSION = "zerobubble-plan", 1
_KEYS = (
    "format",
    "version",
    "model",
    "microbatch_size",
    "validate",
    "layer_names",
    "layers_per_stage",
    "memory_bytes",
    "costs",
    "forecast",
    "reasons",
    "schedule",
)
_OF_RANKS = ("optimizer_ms", "weight_bytes", "activation_bytes")


def dumps(plan: Plan) -> str:
    """Write a plan as JSON text."""
    values = to_dict(plan)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    lines[-1] = '  "schedule": ' + schedules.dumps(plan.schedule).rstrip().replace("\n", "\n  ")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_dict(plan: Plan) -> dict[str, Any]:
    """Give the values that a plan is written with, in their order."""
    memory = plan.memory_bytes
    forecast = {each.name: getattr(plan.forecast, each.name) for each in fields(Forecast)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": plan.model,
        "microbatch_size": plan.microbatch_size,
        "validate": plan.validate,
        "layer_names": list(plan.layer_names),
        "layers_per_stage": list(plan.layers_per_stage),
        "memory_bytes": memory and [None if math.isinf(limit) else limit for limit in memory],
        "costs": plan.costs.to_dict(),
        "forecast": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in forecast.items()
        },
        "reasons": list(plan.reasons),
        "schedule": json.loads(schedules.dumps(plan.schedule)),
    }


def loads(text: str, source: str) -> Plan:
    """Read a plan from JSON text; ``source`` names it in errors.

    Raises:
        UsageError: the text is not JSON, or not of this format; the message names the place.
        ScheduleError: the schedule breaks a rule.

    >>> loads('{"format": "zerobubble-plan", "version": 2}', "plan.json")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: plan.json: version is 2, but this release reads version 1
    """
    value = parse_json(text, source)
    try:
        return _plan(_checked_keys(value))
    except (UsageError, ScheduleError) as error:
        raise type(error)(f"{source}: {error}") from None


def save(plan: Plan, path: str | Path) -> None:
    """Write a plan to a JSON file.

    Raises:
        UsageError: the file cannot be written.
    """
    write_text(path, dumps(plan))


def load(path: str | Path) -> Plan:
    """Read a plan from a JSON file.

    Raises:
        UsageError: the file cannot be read, or as for ``loads``.
        ScheduleError: the schedule breaks a rule.
    """
    return loads(read_text(path), str(path))


def _checked_keys(value: Any) -> dict[str, Any]:
    values = an_object("a plan", value)
    if values.get("format") != FORMAT:
        fail(f"format is {show_value(values.get('format'))}, but a plan has {FORMAT!r}")
    version = values.get("version")
    if isinstance(version, bool) or version != VERSION:
        fail(f"version is {show_value(version)}, but this release reads version {VERSION}")
    return with_keys("a plan", values, _KEYS)


def _plan(values: dict[str, Any]) -> Plan:
    schedule = schedules.read_value(values["schedule"])
    costs = Costs.from_dict(an_object("costs", values["costs"]), schedule.placement)
    verify(schedule, costs)
    return Plan(
        a_text("model", values["model"]),
        tuple(_texts("layer_names", values["layer_names"])),
        tuple(a_count(f"layers_per_stage[{i}]", n) for i, n in _each("layers_per_stage", values)),
        schedule,
        a_count("microbatch_size", values["microbatch_size"]),
        costs,
        a_text("validate", values["validate"]),
        _memory(values, schedule.num_ranks),
        _forecast(values["forecast"], schedule.num_ranks),
        tuple(_texts("reasons", values["reasons"])),
    )


def _memory(values: dict[str, Any], num_ranks: int) -> tuple[float, ...] | None:
    if values["memory_bytes"] is None:
        return None
    limits = tuple(
        math.inf if limit is None else float(a_number(f"memory_bytes[{rank}]", limit))
        for rank, limit in _each("memory_bytes", values)
    )
    if len(limits) != num_ranks:
        fail(f"memory_bytes has {len(limits)} limits for {num_ranks} ranks")
    return limits


def _forecast(value: Any, num_ranks: int) -> Forecast:
    names = tuple(each.name for each in fields(Forecast))
    values = with_keys("forecast", an_object("forecast", value), names)
    found: dict[str, Any] = {}
    for name in names:
        if name in _OF_RANKS:
            found[name] = tuple(
                float(a_number(f"forecast: {name}[{i}]", n)) for i, n in _each(name, values)
            )
            if len(found[name]) != num_ranks:
                fail(f"forecast: {name} has {len(found[name])} values for {num_ranks} ranks")
        elif name == "binding":
            found[name] = a_text("forecast: binding", values[name])
        else:
            found[name] = float(a_number(f"forecast: {name}", values[name]))
    return Forecast(**found)


def _each(name: str, values: dict[str, Any]) -> "enumerate[Any]":
    return enumerate(a_list(name, values[name]))


def _texts(name: str, value: Any) -> list[str]:
    return [a_text(f"{name}[{i}]", text) for i, text in enumerate(a_list(name, value))]
