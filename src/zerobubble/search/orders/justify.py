"""How is an order improved by pushing it back and forth? Forward/backward justification.

First all ops are placed as late as they can be, in the order of their ends; then as early as they
can be, in the order of their latest starts; and again. Each pass respects the memory limits, so
that gaps close from both sides.
"""

from collections.abc import Iterator, Sequence
from threading import Event

import numpy as np

from zerobubble.costs import Floats
from zerobubble.search.orders.arrangement import Arrangement, arrange
from zerobubble.search.orders.listing import UNCAPPED, Preferences, list_ops
from zerobubble.search.orders.reversing import list_ops_backwards
from zerobubble.search.problem import Problem

# What has not got better in so many rounds seldom does.
_FRUITLESS = 4


def justified(
    arrangement: Arrangement, num_rounds: int, patiences: Sequence[float], bound: float
) -> Iterator[Arrangement]:
    """Yield what each pass leads to; one round is a pass back and a pass forth.

    Args:
        arrangement: where to start.
        num_rounds: how often to go back and forth.
        patiences: each pass is tried with all of these, and the best kept.
        bound: stop when it is reached.
    """
    problem = arrangement.problem
    durations = arrangement.end - arrangement.start
    offsets = _offsets(problem)
    for _ in range(num_rounds):
        latest = _best_backwards(arrangement, offsets, patiences)
        if latest is None:
            return
        back, reversed_start = latest
        yield back
        latest_end = float((reversed_start + durations).max())
        latest_start = latest_end - (reversed_start + durations)
        tries = [
            list_ops(problem, _by_deadline(problem, latest_start, patience))
            for patience in patiences
        ]
        arrangement = min(filter(None, tries), key=lambda found: found.value)
        yield arrangement
        if min(back.value, arrangement.value) <= bound:
            return


def best_justified(
    arrangement: Arrangement,
    num_rounds: int,
    patiences: Sequence[float],
    bound: float,
    cancelled: Event | None = None,
) -> tuple[Arrangement, int]:
    """Give the best of an order and of what it is justified to, and how many those were.

    Arguments as for ``justified``, which may end early: after a few rounds without any gain, or
    when it is cancelled.
    """
    best, number, of_best = arrangement, 0, 0
    if best.value <= bound:
        return best, number
    for found in justified(arrangement, num_rounds, patiences, bound):
        number += 1
        if found.value < best.value:
            best, of_best = found, number
        is_fruitless = number - of_best >= 2 * _FRUITLESS
        if is_fruitless or (cancelled is not None and cancelled.is_set()):
            break
    return best, number


def _best_backwards(
    arrangement: Arrangement, offsets: Floats, patiences: Sequence[float]
) -> tuple[Arrangement, Floats] | None:
    found = []
    for patience in patiences:
        placed = list_ops_backwards(arrangement.problem, -arrangement.end, offsets, patience)
        if placed is not None:
            back = arrange(arrangement.problem, placed[0])
            assert back is not None, "ops are placed in the reversed order of time"
            found.append((back, placed[1]))
    return min(found, key=lambda pair: pair[0].value, default=None)


def _offsets(problem: Problem) -> Floats:
    """Say when each rank ends, counted back from the last: as late as it may for the objective."""
    starts = np.array([share.start for share in problem.shares])
    return starts.max() - starts if problem.objective == "span" else np.zeros_like(starts)


def _by_deadline(problem: Problem, latest_start: Floats, patience: float) -> Preferences:
    uncapped = np.full(problem.placement.num_stages, UNCAPPED)
    nothing = np.full(problem.placement.num_ranks, -1.0)
    return Preferences(latest_start, uncapped, uncapped, patience, 0.0, 1.0, nothing)
