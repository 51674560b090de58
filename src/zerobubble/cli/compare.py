"""Compare schedules: time, bubble and memory in one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    BandwidthFlag,
    CostsFlag,
    Json,
    MemoryFlag,
    Microbatches,
    Ranks,
    ReplayFlag,
    Specs,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json, row, shortened, tell_of_free_copies
from zerobubble.cli._resolve import read_memory, resolve_asked
from zerobubble.errors import ScheduleError
from zerobubble.schedules import REGISTRY
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import verify
from zerobubble.view.numbers import table

_COLUMNS = ("span", "bubble", "makespan", "bubble_makespan", "peak_memory")


@dataclass(frozen=True)
class Compare:
    """Compare schedules: time, bubble and memory in one table. Without names, all known ones."""

    schedules: Specs = None
    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    memory: MemoryFlag = None
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    json: Json = False


def run(argv: Sequence[str]) -> int:
    """Print a row for each schedule, and why those without a row have none.

    A schedule that was asked for by name must be possible; of all known ones those that are not
    are told with the reason.
    """
    asked = parse(Compare, argv, command="compare")
    timelines, reasons = [], {}
    for spec in asked.schedules or REGISTRY:
        try:
            timelines.append(_timeline(spec, asked))
        except ScheduleError as error:
            if asked.schedules:
                raise
            reasons[spec] = str(error)
    rows = [row(timeline) for timeline in timelines]
    if asked.json:
        print_json({"schedules": rows, "left_out": reasons})
        return 0
    print(table(["schedule", *_COLUMNS], [_cells(values) for values in rows]))
    tell_of_free_copies(timelines)
    for spec, reason in reasons.items():
        print(f"{spec} is left out: {reason}")
    return 0


def _timeline(spec: str, asked: Compare) -> Timeline:
    schedule, costs = resolve_asked(spec, asked)
    verify(schedule, costs, read_memory(asked.memory, schedule.num_ranks))
    return simulate(schedule, costs)


def _cells(values: dict[str, Any]) -> list[str]:
    return [
        shortened(values["schedule"]),
        f"{values['span']:.6g}",
        f"{values['bubble']:.2%}",
        f"{values['makespan']:.6g}",
        f"{values['bubble_makespan']:.2%}",
        f"{values['peak_memory']:.6g}",
    ]
