"""Show how the bubble falls as memory grows, for every placement and named schedule."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    CostsFlag,
    EffortFlag,
    Json,
    MemoryRangeFlag,
    Microbatches,
    ObjectiveFlag,
    Ranks,
    ReplayFlag,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import is_colored, print_json, row, terminal_width
from zerobubble.cli._resolve import (
    read_costs_for_any_placement,
    read_memory_range,
    require_counts,
)
from zerobubble.search.sweep import Frontier, Point, frontier
from zerobubble.view.frontier import draw, tabulate, tabulate_named


@dataclass(frozen=True)
class ShowFrontier:
    """Show how the bubble falls as memory grows, for every placement and named schedule."""

    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    memory: MemoryRangeFlag = None
    objective: ObjectiveFlag = "span"
    effort: EffortFlag = "quick"
    recompute: ReplayFlag = "off"
    json: Json = False


def run(argv: Sequence[str]) -> int:
    """Search every placement and memory limit, and print a table and a drawing."""
    asked = parse(ShowFrontier, argv, command="frontier")
    ranks, microbatches = require_counts("frontier", asked.ranks, asked.microbatches)
    costs = read_costs_for_any_placement(asked.costs, ranks, recompute=asked.recompute)
    memory = read_memory_range(asked.memory)
    begin = time.perf_counter()
    found = frontier(costs, ranks, microbatches, memory, asked.objective, asked.effort)
    seconds = time.perf_counter() - begin
    if asked.json:
        size = {"ranks": ranks, "microbatches": microbatches, "objective": asked.objective}
        print_json({**size, "effort": asked.effort, **_report(found), "seconds": seconds})
    else:
        print(
            f"bubble of the {asked.objective} by memory limit: {ranks} ranks, {microbatches} "
            "microbatches"
        )
        _print(found)
    return 0


def _print(found: Frontier) -> None:
    print(f"{tabulate(found)}\n")
    print(f"{draw(found, terminal_width() or 80, color=is_colored())}\n")
    print(tabulate_named(found))
    for name, reason in found.left_out.items():
        print(f"{name} is left out: {reason}")


def _report(found: Frontier) -> dict[str, Any]:
    on_frontier = found.pareto()
    return {
        "points": [
            _values(point)
            | {"is_best": found.is_best(point), "is_on_frontier": point in on_frontier}
            for point in found.points
        ],
        "named": [row(timeline) for timeline in found.named],
        "left_out": found.left_out,
    }


def _values(point: Point) -> dict[str, Any]:
    return {
        **row(point.timeline),
        "memory": point.memory,
        "bound": point.bound,
        "bound_bubble": point.bound_bubble,
        "gap": point.gap,
        "is_proved_optimal": point.is_proved_optimal,
    }
