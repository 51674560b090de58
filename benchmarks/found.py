"""How much of a step is idle with the best schedule that the search finds, for the paper's costs?

The settings are those of table 5 of the Zero Bubble paper, the memory is p microbatches a rank, as
1F1B holds, and less. Beside it are the best of the registered schedules that fit, and the bubble
below which no schedule with the placement found can be.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement, placement_named
from zerobubble.search import search
from zerobubble.search.known import known_schedules
from zerobubble.search.placements import PLACEMENTS
from zerobubble.search.problem import Objective
from zerobubble.simulate import Timeline, simulate

PAPER = Path(__file__).parents[1] / "tests" / "data" / "zero_bubble_paper.json"
Model = Literal["1.5B", "6.2B", "14.6B", "28.3B"]


def main(
    models: tuple[Model, ...] = ("1.5B", "6.2B", "14.6B", "28.3B"),
    shares: tuple[float, ...] = (1, 0.75, 0.5, 1 / 3),
    objective: Objective = "span",
    effort: str = "default",
    smallest: bool = False,
) -> None:
    """Print a row for each setting and limit; bubbles are shares of the objective.

    Args:
        models: of the paper.
        shares: what a rank can hold, in p microbatches.
        objective: what is minimised.
        effort: of the search.
        smallest: only the fewest microbatches of each model.
    """
    print(f"{'model':<6}{'p':>3}{'m':>5}{'memory':>8}  {'best named that fits':<24}", end="")
    print(f"{'search':>7}{'bound':>8}  {'placement':<10}{'seconds':>8}")
    for row in _settings(models, smallest):
        for share in shares:
            _print_row(row, share, objective, effort)


def _settings(models: tuple[str, ...], smallest: bool) -> Iterator[dict[str, Any]]:
    rows = json.loads(PAPER.read_text(encoding="utf-8"))["rows"]
    for model in models:
        known = [row for row in rows if row["table"] == "table5" and row["model"] == model]
        known.sort(key=lambda row: row["m"])
        yield from known[:1] if smallest else known


def _print_row(row: dict[str, Any], share: float, objective: Objective, effort: str) -> None:
    num_ranks, num_microbatches = row["p"], row["m"]
    costs_of = partial(_costs, (*row["costs"], row["kept"]))
    memory = round(share * num_ranks * 4) / 4  # a whole number of stages, for all placements
    begin = time.perf_counter()
    asked = (costs_of, num_ranks, num_microbatches, memory)
    try:
        found = search(*asked, objective=objective, effort=effort)
    except UsageError as error:
        print(f"{row['model']:<6}{num_ranks:>3}{num_microbatches:>5}{memory:>8.2f}  {error}")
        return
    seconds = time.perf_counter() - begin
    named = min(_named(costs_of, row, memory, objective), default=None)
    best_named = "none" if named is None else f"{named[1]:<16}{named[0]:.4f}"
    load = max(found.timeline.work_per_rank)
    placement = next(
        name for name in PLACEMENTS if placement_named(name, num_ranks) == found.schedule.placement
    )
    print(
        f"{row['model']:<6}{num_ranks:>3}{num_microbatches:>5}{memory:>8.2f}  {best_named:<24}"
        f"{1 - load / found.value:>7.4f}{1 - load / found.bound:>8.4f}  {placement:<10}"
        f"{seconds:>8.1f}",
        flush=True,
    )


def _costs(of_a_rank: tuple[float, ...], placement: Placement) -> Costs:
    return Costs.of_ranks(placement, *of_a_rank)


def _named(
    costs_of: Callable[[Placement], Costs],
    row: dict[str, Any],
    memory: float,
    objective: Objective,
) -> Iterator[tuple[float, str]]:
    """Yield the bubble and name of each registered schedule that fits."""
    for placed in PLACEMENTS:
        placement = placement_named(placed, row["p"])
        for name, build in known_schedules(placement).items():
            with suppress(ScheduleError):  # it is not defined for these numbers
                schedule = build(row["p"], row["m"], costs_of(placement))
                timeline = simulate(schedule, costs_of(placement))
                if timeline.peak_memory <= memory * (1 + 1e-9):
                    yield _bubble(timeline, objective), name


def _bubble(timeline: Timeline, objective: Objective) -> float:
    value = timeline.span if objective == "span" else timeline.makespan
    return 1 - max(timeline.work_per_rank) / value


if __name__ == "__main__":
    tyro.cli(main)
