"""Where do O, L and R go in an order of F, B and W?

A copy costs nothing as long as the compute never waits for it. So the copies are planned beside the
times that the compute has: those to the host as soon as their F has ended, those back as late as
their B allows. What would be back before it has left stays on the device. Under a memory limit an
order is more than a plan: where an op would exceed it, the compute passes the O of earlier
microbatches first, and waits for them (arXiv 2503.01328, section 3).
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobubble.costs import Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.graph import places
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import limits_of_ranks

Flags = NDArray[np.bool_]

# Copies that the compute waits for shift its times: so often are they planned anew.
_PASSES = 4

# Sums of times and sizes differ by less than this share of the largest.
_ROUNDING = 1e-9


def with_recompute(schedule: Schedule, again: NDArray[Any]) -> Schedule:
    """Run forwards again right before their backwards.

    Args:
        schedule: an order of F, B, W, BW, and maybe O and L of other microbatches.
        again: which stages and microbatches: shape (stages, microbatches), or (stages,).

    Raises:
        UsageError: ``again`` has another shape.
        ScheduleError: one of them is offloaded, or run again, already.

    >>> from zerobubble import build
    >>> [str(op) for op in with_recompute(build("1f1b", 1, 1), np.array([True])).ops(0)]
    ['F0 of stage 0', 'R0 of stage 0', 'BW0 of stage 0']
    """
    chosen = _by_pair(schedule, again, "again")
    _refuse(schedule, chosen & (schedule.has(Kind.O) | schedule.has(Kind.R)))
    orders = []
    for order in schedule.orders:
        kinds, stages, microbatches = schedule.fields(order)
        is_backward = (kinds == Kind.B) | (kinds == Kind.BW)
        where = np.flatnonzero(is_backward & chosen[stages, microbatches])
        orders.append(np.insert(order, where, _codes(schedule, Kind.R, order[where])))
    return _with_orders(schedule, orders)


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
    >>> [f"{op.kind.name}{op.microbatch}" for op in with_copies(schedule, costs).ops(0)]
    ['F0', 'F1', 'O0', 'F2', 'BW2', 'L0', 'BW1', 'BW0']
    """
    costs.require_stages(schedule.num_stages, schedule.name)
    again = schedule.has(Kind.R)
    chosen = ~again if moved is None else _by_pair(schedule, moved, "moved")
    _refuse(schedule, schedule.has(Kind.O) | (chosen & again))
    chosen &= (costs.activation_offloaded > 0)[:, None]
    limits = None if memory is None else limits_of_ranks(memory, schedule.num_ranks)
    if limits is not None:
        _require_room(schedule, costs, chosen, limits)
    timeline = simulate(schedule, costs)
    least, best = timeline.span, None
    for _ in range(_PASSES):
        timeline = simulate(_placed(schedule, costs, timeline, chosen, limits), costs)
        if best is None or timeline.span < best.span * (1 - _ROUNDING):
            best = timeline
        if best.span <= least * (1 + _ROUNDING):
            break
    assert best is not None
    return best.schedule


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
    best = simulate(with_copies(schedule, costs, moved), costs)
    longest = best.span * (1 + _ROUNDING)
    too_low, finest = 0.0, float(costs.activation_offloaded.min(initial=np.inf)) / 2
    takes_time = bool((costs.offload + costs.load).any())
    while takes_time and best.peak_memory - too_low > max(finest, best.peak_memory / 50):
        limit = (best.peak_memory + too_low) / 2
        try:
            tried = simulate(with_copies(schedule, costs, moved, limit), costs)
        except ScheduleError:
            too_low = limit
            continue
        if tried.span <= longest:
            best = tried
        else:
            too_low = limit
    return best.schedule


def offload_to_compute_ratio(
    hidden_size: int, sequence_length: int, flop_per_s: float, bytes_per_s: float
) -> float:
    """Give k, the time of a layer's copies to the host and back over that of its compute.

    A layer of a transformer in 16 bits, whose light ops are run again: up to k = 1 all of its
    activations can be offloaded at no cost (arXiv 2503.01328, section 2).

    Args:
        hidden_size: of the layer.
        sequence_length: tokens of a sample.
        flop_per_s: speed of the compute.
        bytes_per_s: speed of the copies of one direction.

    Raises:
        UsageError: a number is not positive.

    >>> round(offload_to_compute_ratio(8192, 16384, flop_per_s=220e12, bytes_per_s=15e9), 2)
    0.75
    """
    for value in (hidden_size, sequence_length, flop_per_s, bytes_per_s):
        if not 0 < value < np.inf:
            raise UsageError(f"sizes and speeds must be positive, not {value}")
    return 10 / (3 * (6 * hidden_size + sequence_length)) * flop_per_s / bytes_per_s


@dataclass(frozen=True)
class _Plan:
    """What moves and when, by stage and microbatch in one row: as if compute never waited."""

    is_moved: Flags
    offload_end: Floats
    load_start: Floats


@dataclass(frozen=True)
class _Rank:
    """The pairs of stage and microbatch on one rank that may move, in the order of their F.

    A gap is named by the op behind it. ``offload`` and ``load`` are the gaps of O and L;
    ``forward`` and ``backward`` the places of F and B (or BW).
    """

    pairs: Codes
    forward: Codes
    backward: Codes
    offload: Codes
    load: Codes
    is_moved: Flags
    sizes: Floats


def _placed(
    schedule: Schedule, costs: Costs, timeline: Timeline, chosen: Flags, limits: Floats | None
) -> Schedule:
    """Place O and L beside the times that the compute has in a timeline of the schedule."""
    positions = places(schedule)[1]
    start, end = _times(timeline)
    plan = _planned(schedule, costs, chosen, positions, start, end)
    slack = _ROUNDING * float(end.max(initial=0.0))
    orders = []
    for rank, order in enumerate(schedule.orders):
        its = _pairs_of_rank(schedule, costs, chosen, positions, rank)
        _place_as_planned(its, plan, start[order], end[order], slack)
        changes = costs.memory_changes_of(schedule, rank)
        limit = np.inf if limits is None else limits[rank] * (1 + _ROUNDING)
        offload_end = plan.offload_end[its.pairs]
        if limits is not None:
            offload_end[_offload_in_time(its, changes, limit)] = -np.inf
            _load_in_time(its, changes, limit)
        copies = _copies(schedule, its, offload_end, plan.load_start[its.pairs])
        orders.append(_inserted(order, changes, copies, limit))
    return _with_orders(schedule, orders)


def _planned(
    schedule: Schedule, costs: Costs, chosen: Flags, positions: Codes, start: Floats, end: Floats
) -> _Plan:
    """Give every copy its time: as early as its engine allows to the host, as late as B back.

    Where ranks share an engine, a copy may have to wait for one of another rank first.
    """
    pair = chosen.size
    rows = np.repeat(np.arange(schedule.num_stages), schedule.num_microbatches)
    engines = np.asarray(schedule.placement.stage_to_rank)[rows] // costs.ranks_per_engine
    begins, backward = _backwards(schedule, start), _backwards(schedule, positions)
    is_shared = costs.ranks_per_engine > 1
    deadlines = begins - is_shared * costs.load.max()
    by_forward = np.lexsort((positions[:pair], end[:pair]))
    by_backward = np.lexsort((backward, begins))[::-1]
    is_moved = chosen.reshape(-1).astype(np.int64)
    load_start = deadlines - costs.load[rows]
    offload_end = end[:pair] + costs.offload[rows]
    slack = _ROUNDING * float(end.max(initial=0.0))
    for ready in (offload_end.copy(), offload_end):
        loads = (engines, deadlines, costs.load[rows], ready - slack, is_moved, load_start)
        _plan_loads(by_backward, *loads, np.full(schedule.num_ranks, np.inf), work=pair)
        offloads = (engines, end[:pair], costs.offload[rows], load_start + slack, is_moved)
        _plan_offloads(by_forward, *offloads, offload_end, np.zeros(schedule.num_ranks), work=pair)
    waits = is_shared * costs.offload.max()
    return _Plan(is_moved.astype(bool), offload_end + waits, load_start)


@hot
def _plan_loads(
    pairs: Codes,
    engines: Codes,
    deadlines: Floats,
    durations: Floats,
    ready: Floats,
    is_moved: Codes,
    load_start: Floats,
    taken_from: Floats,
) -> None:
    """Start each copy back as late as B and the copies behind it allow; keep what is not ready."""
    for pair in pairs:
        if is_moved[pair]:
            engine = engines[pair]
            begin = min(deadlines[pair], taken_from[engine]) - durations[pair]
            if begin < ready[pair]:
                is_moved[pair] = 0
            else:
                load_start[pair] = taken_from[engine] = begin


@hot
def _plan_offloads(
    pairs: Codes,
    engines: Codes,
    ready: Floats,
    durations: Floats,
    load_start: Floats,
    is_moved: Codes,
    offload_end: Floats,
    free: Floats,
) -> None:
    """Copy to the host one after the other; keep what would be back before it has left."""
    for pair in pairs:
        if is_moved[pair]:
            engine = engines[pair]
            ends = max(ready[pair], free[engine]) + durations[pair]
            if ends > load_start[pair]:
                is_moved[pair] = 0
            else:
                offload_end[pair] = free[engine] = ends


def _pairs_of_rank(
    schedule: Schedule, costs: Costs, chosen: Flags, positions: Codes, rank: int
) -> _Rank:
    """List what may move on a rank; as yet it all stays."""
    kinds, stages, microbatches = schedule.fields(schedule.orders[rank])
    forward = np.flatnonzero((kinds == Kind.F) & chosen[stages, microbatches])
    pairs, none = schedule.orders[rank][forward], np.zeros_like(forward)
    backward = _backwards(schedule, positions)[pairs]
    sizes = costs.activation_offloaded[stages[forward]]
    return _Rank(pairs, forward, backward, none, none.copy(), none.astype(bool), sizes)


def _place_as_planned(its: _Rank, plan: _Plan, start: Floats, end: Floats, slack: float) -> None:
    """Find the gaps that are nearest to the planned times; what would move for nothing stays."""
    offload = np.searchsorted(start, plan.offload_end[its.pairs] - slack)
    its.offload[:] = np.maximum(offload, its.forward + 1)
    load = np.searchsorted(end, plan.load_start[its.pairs] + slack, side="right")
    its.load[:] = np.minimum(load, its.backward)
    its.is_moved[:] = plan.is_moved[its.pairs] & (its.offload < its.load)


def _offload_in_time(its: _Rank, changes: Floats, limit: float) -> Flags:
    """Pull O in front of the ops that would exceed the limit; say which are waited for.

    First go those under way, in their order; then those that were to stay, the one first whose B
    is last. Copies back are taken to be as late as can be.
    """
    is_waited_for = np.zeros(len(its.pairs), dtype=bool)
    sizes = its.sizes.tolist()
    at_forward = dict(zip(its.forward.tolist(), range(len(sizes)), strict=True))
    at_backward = dict(zip(its.backward.tolist(), range(len(sizes)), strict=True))
    leaving: deque[int] = deque()
    staying: list[tuple[int, int]] = []
    held = 0.0
    for place, change in enumerate(changes.tolist()):
        while leaving and its.offload[leaving[0]] <= place:
            held -= sizes[leaving.popleft()]
        own = at_backward.get(place, -1)
        back = sizes[own] if own >= 0 and its.is_moved[own] else 0.0
        while held + back + max(change, 0.0) > limit and (leaving or staying):
            if leaving:
                pulled = leaving.popleft()
            else:
                later, pulled = heappop(staying)
                if -later <= place:
                    break
            its.is_moved[pulled] = is_waited_for[pulled] = True
            its.offload[pulled] = place
            held -= sizes[pulled]
        held += back + change
        if (new := at_forward.get(place, -1)) >= 0:
            if its.is_moved[new]:
                leaving.append(new)
            else:
                heappush(staying, (-int(its.backward[new]), new))
    return is_waited_for


def _load_in_time(its: _Rank, changes: Floats, limit: float) -> None:
    """Put L where it was planned, or as soon behind as the limit allows; first what B needs first.

    Raises nothing: right before its B there is room, as ``_offload_in_time`` sees to.
    """
    moved = np.flatnonzero(its.is_moved)
    in_gaps = np.zeros(len(changes))
    np.subtract.at(in_gaps, its.offload[moved], its.sizes[moved])
    np.add.at(in_gaps, its.backward[moved], its.sizes[moved])
    level = np.cumsum(in_gaps + changes) + np.maximum(-changes, 0.0)
    previous = 0
    for own in moved[np.argsort(its.backward[moved])].tolist():
        gap, end = max(int(its.load[own]), int(its.offload[own]) + 1, previous), its.backward[own]
        full = np.flatnonzero(level[gap:end] + its.sizes[own] > limit)
        previous = gap = gap + int(full[-1]) + 1 if full.size else gap
        level[gap:end] += its.sizes[own]
        its.load[own] = gap


@dataclass(frozen=True)
class _Copies:
    """The copies of a rank: their codes, gaps, times in the gap, and what they add to memory."""

    codes: Codes
    gaps: Codes
    times: Floats
    changes: Floats

    def sorted(self) -> "_Copies":
        """Put them in the order of gaps and times; at equal times O frees before L takes."""
        order = np.lexsort((self.changes, self.times, self.gaps))
        return _Copies(self.codes[order], self.gaps[order], self.times[order], self.changes[order])


def _copies(schedule: Schedule, its: _Rank, offload_end: Floats, load_start: Floats) -> _Copies:
    """List the O and L of what moves on a rank."""
    moved = its.is_moved
    pairs, sizes = its.pairs[moved], its.sizes[moved]
    return _Copies(
        np.concatenate([_codes(schedule, kind, pairs) for kind in (Kind.O, Kind.L)]),
        np.concatenate([its.offload[moved], its.load[moved]]),
        np.concatenate([offload_end[moved], load_start[moved]]),
        np.concatenate([-sizes, sizes]),
    )


def _inserted(order: Codes, changes: Floats, copies: _Copies, limit: float) -> Codes:
    """Put copies into their gaps by time; where that exceeds the limit, every O of a gap first."""
    copies = copies.sorted()
    held = np.cumsum(np.insert(changes, copies.gaps, copies.changes))
    gaps = np.insert(np.arange(len(order)), copies.gaps, copies.gaps)
    is_tight = np.isin(copies.gaps, gaps[held > limit]) & (copies.changes < 0)
    times = np.where(is_tight, -np.inf, copies.times)
    copies = _Copies(copies.codes, copies.gaps, times, copies.changes).sorted()
    return np.insert(order, copies.gaps, copies.codes)


def _require_room(schedule: Schedule, costs: Costs, chosen: Flags, limits: Floats) -> None:
    """Refuse limits that are exceeded even if all leaves at once and comes back at the last."""
    least, positions = np.zeros(schedule.num_ranks), places(schedule)[1]
    highest = np.zeros(schedule.num_ranks, dtype=np.int64)
    for rank in range(schedule.num_ranks):
        its = _pairs_of_rank(schedule, costs, chosen, positions, rank)
        changes = costs.memory_changes_of(schedule, rank)
        after = changes.copy()
        after[its.forward] -= its.sizes
        after[its.backward] += its.sizes
        level = np.cumsum(after)
        level[its.forward] += its.sizes
        level += np.maximum(-changes, 0.0)
        highest[rank] = level.argmax()
        least[rank] = level.max(initial=0.0)
    over = least - limits * (1 + _ROUNDING)
    if over.max() > 0:
        rank = int(over.argmax())
        op = schedule.op(schedule.orders[rank][highest[rank]])
        raise ScheduleError(
            f"{schedule.name}: rank {rank}: {op} raises activation memory to {least[rank]:g} even "
            f"with all offloaded that may be, over the limit of {limits[rank]:g}: allow "
            f"{least.max():g}, the least that this order can be brought to"
        )


def _by_pair(schedule: Schedule, flags: NDArray[Any], name: str) -> Flags:
    """Give a flag for each stage and microbatch, from these or from one for each stage."""
    given = np.asarray(flags)
    shape = (schedule.num_stages, schedule.num_microbatches)
    if given.dtype != bool or given.shape not in (shape, shape[:1]):
        raise UsageError(
            f"{schedule.name}: {name} must be true or false for each of {shape[0]} stages, or of "
            f"{shape[0]} x {shape[1]} stages and microbatches, not {given.dtype} of {given.shape}"
        )
    by_pair: Flags = np.array(np.broadcast_to(given.reshape(shape[0], -1), shape))
    return by_pair


def _refuse(schedule: Schedule, is_taken: Flags) -> None:
    """Refuse what has a way back already."""
    for stage, i in np.argwhere(is_taken)[:1].tolist():
        raise ScheduleError(
            f"{schedule.name}: rank {schedule.placement.stage_to_rank[stage]}: microbatch {i} of "
            f"stage {stage} is offloaded or run again already: give an order without"
        )


def _times(timeline: Timeline) -> tuple[Floats, Floats]:
    """Tabulate start and end of every op by its code."""
    schedule = timeline.schedule
    start, end = np.zeros((2, len(Kind) * schedule.num_stages * schedule.num_microbatches))
    for rank, order in enumerate(schedule.orders):
        start[order], end[order] = timeline.start[rank], timeline.end[rank]
    return start, end


def _backwards(schedule: Schedule, by_code: NDArray[Any]) -> NDArray[Any]:
    """Give what a table by code tells of the BW of every stage and microbatch, or of its B."""
    pair = schedule.num_stages * schedule.num_microbatches
    is_fused = schedule.has(Kind.BW).reshape(-1)
    both = (by_code[kind * pair : (kind + 1) * pair] for kind in (Kind.BW, Kind.B))
    return np.where(is_fused, *both)


def _codes(schedule: Schedule, kind: Kind, codes: Codes) -> Codes:
    """Give the codes of the same stages and microbatches for another kind."""
    pair = schedule.num_stages * schedule.num_microbatches
    return kind * pair + codes % pair


def _with_orders(schedule: Schedule, orders: list[Codes]) -> Schedule:
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(orders))
