"""Up to which size are schedules verified and simulated, in what time and memory?

Every row has four times as many ops as the one before: twice the ranks and the microbatches. Each
measurement runs in a process of its own, whose peak resident memory is told, with the schedule in
it. Numba is imported, and its machine code loaded or compiled, before the clock starts.
"""

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from zerobubble import jit
from zerobubble.costs import Costs
from zerobubble.ir import Codes, Kind, Schedule, linear
from zerobubble.simulate import simulate
from zerobubble.verify import verify

SIZES = [(64, 512), (128, 1024), (256, 2048), (512, 4096), (1024, 8192)]


class Measured(NamedTuple):
    """What one action took."""

    start_s: float
    seconds: float
    peak_mib: float


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build ``zb-h1`` from arrays: as registered, but without an object for each op."""
    orders = tuple(_order(rank, num_ranks, num_microbatches) for rank in range(num_ranks))
    return Schedule("zb-h1", linear(num_ranks), num_microbatches, orders)


def _order(rank: int, num_ranks: int, num_microbatches: int) -> Codes:
    i = np.arange(num_microbatches)
    forward, backward, weight = (
        (kind * num_ranks + rank) * num_microbatches + i for kind in (Kind.F, Kind.B, Kind.W)
    )
    warm_up = min(num_ranks - rank, num_microbatches)
    turns = np.full((num_microbatches, 3), -1)
    turns[:, 0] = backward
    turns[rank:, 1] = weight[: max(0, num_microbatches - rank)]
    turns[: num_microbatches - warm_up, 2] = forward[warm_up:]
    left = weight[max(0, num_microbatches - rank) :]
    return np.concatenate([forward[:warm_up], turns[turns >= 0], left])


def _verify(schedule: Schedule) -> None:
    verify(schedule, memory=schedule.num_ranks)


def _simulate(schedule: Schedule) -> None:
    timeline = simulate(schedule, Costs.uniform(schedule.num_stages))
    timeline.bubble, timeline.bubble_makespan, timeline.peak_memory  # noqa: B018


ACTIONS = {"verify": _verify, "simulate": _simulate}


def measure(name: str, num_ranks: int, num_microbatches: int) -> Measured:
    """Run an action in this process, once small and compiled and once in the size asked for."""
    action, begin = ACTIONS[name], time.perf_counter()
    with patch.object(jit, "SMALLEST_COMPILED_WORK", 0):
        action(zb_h1(2, 2))
    start_s = time.perf_counter() - begin
    schedule = zb_h1(num_ranks, num_microbatches)
    begin = time.perf_counter()
    action(schedule)
    seconds = time.perf_counter() - begin
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return Measured(start_s, seconds, peak_mib)


def main() -> None:
    """Print a row for each size, with the growth from the row before."""
    print("zb-h1; start: to import numba and to load or compile the machine code\n")
    for name in ACTIONS:
        print(f"{name:<12}{'ops':>12}{'start':>9}{'seconds':>17}{'peak MiB':>17}")
        before = None
        for size in SIZES:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(measure, name, *size).result()
            print(_row(size, found, before), flush=True)
            before = found
        print()


def _row(size: tuple[int, int], found: Measured, before: Measured | None) -> str:
    num_ranks, num_microbatches = size
    seconds, peak = f"{found.seconds:.2f}", f"{found.peak_mib:.0f}"
    if before:
        seconds += f" (x{found.seconds / before.seconds:4.1f})"
        peak += f" (x{found.peak_mib / before.peak_mib:4.1f})"
    num_ops = 3 * num_ranks * num_microbatches
    name = f"{num_ranks} x {num_microbatches}"
    return f"{name:<12}{num_ops:>12,}{found.start_s:>9.2f}{seconds:>17}{peak:>17}"


if __name__ == "__main__":
    main()
