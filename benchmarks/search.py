"""How long does the search take, in how much memory, and how close to the bound is what it finds?

Costs and sizes are those of the Zero Bubble paper; a rank may hold p microbatches, as with 1F1B.
Each row runs in a process of its own, whose peak resident memory is told. Machine code is loaded or
compiled before the clock starts. Growth is that of the seconds over that of the ops from the row
before: 1 where the time is proportional to the size.
"""

import json
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import tyro

from benchmarks.instances import draw_case
from benchmarks.safety import faults_of
from zerobubble import jit
from zerobubble.costs import Costs
from zerobubble.ir import Placement, placement_named
from zerobubble.search import search
from zerobubble.search.placements import PLACEMENTS

PAPER = Path(__file__).parents[1] / "tests" / "data" / "zero_bubble_paper.json"
QUICK = [(8, 64), (32, 256), (64, 512)]
LARGEST = (1024, 8192)
MODELS = ("1.5B", "14.6B", "28.3B")
# Enough random instances for every hot function to be called.
_NUM_WARM_UP = 20


class Row(NamedTuple):
    """What is searched in one process: one placement, or all that the command line tries."""

    name: str
    placements: tuple[str, ...]
    num_ranks: int
    num_microbatches: int
    costs: tuple[float, ...]
    effort: str
    is_compiled: bool = True

    @property
    def num_ops(self) -> int:
        """Number of ops of the schedules of all placements."""
        places = [placement_named(name, self.num_ranks) for name in self.placements]
        return 3 * self.num_microbatches * sum(place.num_stages for place in places)


class Measured(NamedTuple):
    """What a row took, and the best that it found for any placement."""

    seconds: float
    peak_mib: float
    placement: str
    bubble: float
    least_bubble: float
    gap: float


def measure(row: Row) -> Measured:
    """Search in this process; the clock starts when all machine code is there."""
    if row.is_compiled:
        with patch.object(jit, "SMALLEST_COMPILED_WORK", 0):
            for number in range(_NUM_WARM_UP):
                faults_of(draw_case(number, seed=0))
    asked = row.placements[0] if len(row.placements) == 1 else None
    threshold = jit.SMALLEST_COMPILED_WORK if row.is_compiled else np.inf
    with patch.object(jit, "SMALLEST_COMPILED_WORK", threshold):
        begin = time.perf_counter()
        best = search(
            partial(_costs, row.costs),
            row.num_ranks,
            row.num_microbatches,
            memory=row.num_ranks,
            placement=asked,
            effort=row.effort,
        )
        seconds = time.perf_counter() - begin
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    least_bubble = 1 - max(best.timeline.work_per_rank) / best.bound
    placement = str(best.schedule.placement)
    return Measured(seconds, peak_mib, placement, best.timeline.bubble, least_bubble, best.gap)


def _costs(of_a_rank: tuple[float, ...], placement: Placement) -> Costs:
    return Costs.of_ranks(placement, *of_a_rank)


def main(quick: bool = False) -> None:
    """Print a table for each kind of search.

    Args:
        quick: leave out the default effort.
    """
    print(f"{os.cpu_count()} cores, load average before the run {os.getloadavg()[0]:.1f}\n")
    _print_table("quick effort, all placements", [_quick_row(*size) for size in QUICK])
    for name in ("linear", "v"):
        row = _quick_row(*LARGEST)._replace(placements=(name,))
        _print_table(f"quick effort, {name}", [row])
    row = _quick_row(*QUICK[0])._replace(is_compiled=False)
    _print_table("quick effort, all placements, without numba", [row])
    if not quick:
        rows = [_row_of(_smallest(model), "default") for model in MODELS]
        _print_table("default effort, all placements", rows)


def _quick_row(num_ranks: int, num_microbatches: int) -> Row:
    row = _row_of(_smallest(MODELS[0]), "quick")
    return row._replace(num_ranks=num_ranks, num_microbatches=num_microbatches)


def _row_of(known: dict[str, Any], effort: str) -> Row:
    costs = (*known["costs"], known["kept"])
    return Row(known["model"], PLACEMENTS, known["p"], known["m"], costs, effort)


def _smallest(model: str) -> dict[str, Any]:
    """Find the setting of a model with the fewest microbatches."""
    rows = json.loads(PAPER.read_text())["rows"]
    known = [row for row in rows if row["table"] == "table5" and row["model"] == model]
    return min(known, key=lambda row: row["m"])


def _print_table(title: str, rows: list[Row]) -> None:
    print(f"{title}\n{'costs, p x m':<20}{'ops':>12}{'seconds':>10}{'growth':>9}", end="")
    print(f"{'bubble':>10}{'bound':>10}{'gap':>9}{'peak MiB':>10}  best placement")
    before: tuple[Row, Measured] | None = None
    for row in rows:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found = pool.submit(measure, row).result()
        print(_line(row, found, before), flush=True)
        before = row, found
    print()


def _line(row: Row, found: Measured, before: tuple[Row, Measured] | None) -> str:
    growth = ""
    if before is not None:
        growth = f"{found.seconds / before[1].seconds * before[0].num_ops / row.num_ops:.2f}"
    size = f"{row.name}, {row.num_ranks} x {row.num_microbatches}"
    return (
        f"{size:<20}{row.num_ops:>12,}{found.seconds:>10.2f}{growth:>9}{found.bubble:>10.3%}"
        f"{found.least_bubble:>10.3%}{found.gap:>9.3%}{found.peak_mib:>10.0f}  {found.placement}"
    )


if __name__ == "__main__":
    tyro.cli(main)
