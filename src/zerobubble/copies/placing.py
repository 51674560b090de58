"""Where do O and L go, so that nothing waits for them and a memory limit is kept?

A copy costs nothing as long as the compute never waits for it, so it is placed beside the times
that the compute has. Under a memory limit an order is more than a plan: where an op would exceed
it, the compute passes the O of earlier microbatches first, and waits for them (arXiv 2503.01328,
section 3).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobubble.copies.pairs import (
    Pairs,
    by_pair,
    codes_of,
    pairs_of_rank,
    refuse_taken,
    with_orders,
)
from zerobubble.copies.room import least_memory, load_in_time, pull_offloads, require_least_memory
from zerobubble.copies.timing import Plan, planned, times_by_code
from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.graph import places
from zerobubble.ir import Codes, Flags, Kind, Schedule
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import limits_of_ranks

# Copies that the compute waits for shift its times: so often are they planned anew.
_PASSES = 4

# The least memory is found to one part in so many.
_FINEST_SHARE = 32


def with_copies(
    schedule: Schedule,
    costs: Costs,
    moved: NDArray[Any] | None = None,
    memory: ArrayLike | None = None,
) -> Schedule:
    """Let microbatches leave the device between their forward and their backward.

    Without a limit no copy delays the compute, and a microbatch whose copies do not fit between
    its F and its B stays. With a limit the order never exceeds it: copies to the host are waited
    for, copies back are put off, and at last those move too that would have stayed.

    Args:
        schedule: an order of F, B, W, BW, and maybe R of those that are not moved.
        costs: of its stages; ``offload`` and ``load`` are the times of the copies.
        moved: which may move: shape (stages, microbatches), or (stages,); by default all that have
            no R.
        memory: limit for every rank, or one for each, in the unit of the activation sizes.

    Raises:
        UsageError: costs, limits or ``moved`` do not fit the schedule.
        ScheduleError: it has O and L already, R where it shall move, or no copies bring it below
            the limit; the message names the least that this order can be brought to.

    >>> from zerobubble import Costs, build
    >>> schedule = build("gpipe", num_ranks=1, num_microbatches=4)
    >>> costs = Costs.uniform(1).with_bandwidth(1)
    >>> print(*(f"{op.kind.name}{op.microbatch}" for op in with_copies(schedule, costs).ops(0)))
    F0 F1 O0 F2 O1 L0 F3 O2 L1 BW0 O3 L2 BW1 L3 BW2 BW3
    """
    chosen = _chosen(schedule, costs, moved)
    limits = None if memory is None else limits_of_ranks(memory, schedule.num_ranks)
    if limits is not None:
        require_least_memory(schedule, costs, chosen, limits)
    return _fastest(simulate(schedule, costs), chosen, limits, _PASSES).schedule


def with_least_memory(
    schedule: Schedule, costs: Costs, moved: NDArray[Any] | None = None
) -> Schedule:
    """Place copies as ``with_copies`` without a limit, in the least memory that takes no longer.

    A forward in the warm-up may run long before anything waits for it. Where the compute passes
    the O of earlier microbatches first, it runs later, and so does its activation take memory
    (arXiv 2503.01328, section 3.3).

    Raises:
        UsageError, ScheduleError: as ``with_copies``.
    """
    chosen, plain = _chosen(schedule, costs, moved), simulate(schedule, costs)
    best = _fastest(plain, chosen, None, _PASSES)
    if not (costs.offload + costs.load).any():
        return best.schedule
    longest = best.span * (1 + TOLERANCE)
    too_low, _ = least_memory(schedule, costs, chosen)
    low, finest = float(too_low.max()), float(costs.activation_offloaded.min()) / 2
    while best.peak_memory - low > max(finest, best.peak_memory / _FINEST_SHARE):
        limit = (best.peak_memory + low) / 2
        tried = _fastest(plain, chosen, np.full(schedule.num_ranks, limit), passes=2)
        if tried.span <= longest:
            best = tried
        else:
            low = limit
    return best.schedule


def _chosen(schedule: Schedule, costs: Costs, moved: NDArray[Any] | None) -> Flags:
    """Tell what may move and frees anything then."""
    costs.require_stages(schedule.num_stages, schedule.name)
    again = schedule.has(Kind.R)
    chosen = ~again if moved is None else by_pair(schedule, moved, "moved")
    refuse_taken(schedule, schedule.has(Kind.O) | (chosen & again))
    return chosen & (costs.activation_offloaded > 0)[:, None]


def _fastest(plain: Timeline, chosen: Flags, limits: Floats | None, passes: int) -> Timeline:
    """Place copies beside the times of an order without, then beside those that result."""
    schedule, costs = plain.schedule, plain.costs
    tried = best = simulate(_placed(schedule, costs, plain, chosen, limits), costs)
    for _ in range(passes - 1):
        if best.span <= plain.span * (1 + TOLERANCE):
            break
        tried = simulate(_placed(schedule, costs, tried, chosen, limits), costs)
        if tried.span < best.span * (1 - TOLERANCE):
            best = tried
    return best


def _placed(
    schedule: Schedule, costs: Costs, timeline: Timeline, chosen: Flags, limits: Floats | None
) -> Schedule:
    """Place O and L beside the times that the compute has in a timeline of the schedule."""
    positions = places(schedule)[1]
    start, end = times_by_code(timeline)
    plan = planned(schedule, costs, chosen, positions, start, end)
    slack = TOLERANCE * float(end.max(initial=0.0))
    orders = []
    for rank, order in enumerate(schedule.orders):
        its = pairs_of_rank(schedule, costs, chosen, positions, rank)
        _place_as_planned(its, plan, start[order], end[order], slack)
        changes = costs.memory_changes_of(schedule, rank)
        limit = np.inf if limits is None else limits[rank] * (1 + TOLERANCE)
        offload_end = plan.offload_end[its.pairs]
        if limits is not None:
            offload_end[pull_offloads(its, changes, limit)] = -np.inf
            load_in_time(its, changes, limit)
        copies = _copies(schedule, its, offload_end, plan.load_start[its.pairs])
        orders.append(_inserted(order, changes, copies, limit))
    return with_orders(schedule, orders)


def _place_as_planned(its: Pairs, plan: Plan, start: Floats, end: Floats, slack: float) -> None:
    """Find the gaps that are nearest to the planned times; what would move for nothing stays."""
    offload = np.searchsorted(start, plan.offload_end[its.pairs] - slack)
    its.offload[:] = np.maximum(offload, its.forward + 1)
    load = np.searchsorted(end, plan.load_start[its.pairs] + slack, side="right")
    its.load[:] = np.minimum(load, its.backward)
    its.is_moved[:] = plan.is_moved[its.pairs] & (its.offload < its.load)


@dataclass(frozen=True)
class _Copies:
    """The copies of a rank: their codes, gaps, times in the gap, and what they add to memory.

    ``turns`` are the places of F for O and of B for L: so copies of one direction follow each other
    where their times are equal.
    """

    codes: Codes
    gaps: Codes
    times: Floats
    changes: Floats
    turns: Codes

    def sorted(self) -> "_Copies":
        """Put them in the order of gaps and times; at equal times O frees before L takes."""
        order = np.lexsort((self.turns, self.changes > 0, self.times, self.gaps))
        return _Copies(
            self.codes[order],
            self.gaps[order],
            self.times[order],
            self.changes[order],
            self.turns[order],
        )


def _copies(schedule: Schedule, its: Pairs, offload_end: Floats, load_start: Floats) -> _Copies:
    """List the O and L of what moves on a rank."""
    moved = its.is_moved
    pairs, sizes = its.pairs[moved], its.sizes[moved]
    return _Copies(
        np.concatenate([codes_of(schedule, kind, pairs) for kind in (Kind.O, Kind.L)]),
        np.concatenate([its.offload[moved], its.load[moved]]),
        np.concatenate([offload_end[moved], load_start[moved]]),
        np.concatenate([-sizes, sizes]),
        np.concatenate([its.forward[moved], its.backward[moved]]),
    )


def _inserted(order: Codes, changes: Floats, copies: _Copies, limit: float) -> Codes:
    """Put copies into their gaps by time; where that exceeds the limit, every O of a gap first."""
    copies = copies.sorted()
    held = np.cumsum(np.insert(changes, copies.gaps, copies.changes))
    gaps = np.insert(np.arange(len(order)), copies.gaps, copies.gaps)
    is_tight = np.isin(copies.gaps, gaps[held > limit]) & (copies.changes < 0)
    times = np.where(is_tight, -np.inf, copies.times)
    copies = replace(copies, times=times).sorted()
    return np.insert(order, copies.gaps, copies.codes)
