"""Which ops can every op of a timeline have waited for?

All arrays run over the ops of all ranks, rank after rank (``Schedule.flat``), and hold indices into
themselves, or -1 for none.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Floats
from zerobubble.graph import places, producers, run_order
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot

_O, _L = int(Kind.O), int(Kind.L)


class Waits(NamedTuple):
    """What each op comes after; of these, what ended last decided when it could start.

    Attributes:
        computed: the op that its rank computed before it.
        turn: what its rank was busy with before it: that op, or a copy to the host which ended
            later and which the compute passed since. Of a copy, the one before on its engine.
        needs: the op whose output it needs. L needs that the compute comes to it: what the rank
            was busy with before.
        load: of B and BW, the copy back of what they read.
    """

    computed: Codes
    turn: Codes
    needs: Codes
    load: Codes

    def latest(self, index: int, times: tuple[Floats, Floats, Floats]) -> int:
        """Tell what an op waited for longest, or -1; ``times`` says when each had come to it."""
        pairs = zip(times, self[1:], strict=True)
        known = [(time[index], places[index]) for time, places in pairs if places[index] >= 0]
        return int(max(known, key=lambda pair: pair[0], default=(0.0, -1))[1])


def index_of_codes(schedule: Schedule) -> Codes:
    """Tabulate for each op code where the op is in the joined orders, or -1."""
    ranks, indices = places(schedule)
    _, offsets = schedule.flat()
    index: Codes = np.where(ranks >= 0, offsets[ranks] + indices, -1)
    return index


def lanes_of(schedule: Schedule, rank: int) -> tuple[Codes, Codes, Codes]:
    """Tell where in the order of a rank those ops are that follow each other in time.

    What it computes, its copies to the host in the order of their forwards, and its copies back.

    >>> from zerobubble.ir import BW, F, L, O, linear
    >>> ops = [F(0, 0), F(0, 1), O(0, 1), O(0, 0), L(0, 1), L(0, 0), BW(0, 0), BW(0, 1)]
    >>> schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    >>> [lane.tolist() for lane in lanes_of(schedule, 0)]
    [[0, 1, 6, 7], [3, 2], [4, 5]]
    """
    order = schedule.orders[rank]
    kinds, _, _ = schedule.fields(order)
    computed = np.flatnonzero((kinds != Kind.O) & (kinds != Kind.L))
    out, back = (np.flatnonzero(kinds == kind) for kind in (Kind.O, Kind.L))
    _, indices = places(schedule)
    forwards = indices[producers(schedule)[order[out]]] if len(out) else out
    return computed, out[np.argsort(forwards, kind="stable")], back


def find_waits(schedule: Schedule, start: Floats, end: Floats, ranks_per_engine: int) -> Waits:
    """Find what the ops of a timeline wait for.

    >>> from zerobubble import Costs, build, simulate
    >>> timeline = simulate(build("1f1b", num_ranks=2, num_microbatches=1), Costs.uniform(2))
    >>> start, end = np.concatenate(timeline.start), np.concatenate(timeline.end)
    >>> found = find_waits(timeline.schedule, start, end, ranks_per_engine=1)
    >>> found.turn.tolist(), found.needs.tolist()
    ([-1, 0, -1, 2], [-1, 3, 0, 2])
    """
    codes, offsets = schedule.flat()
    index_of, needs = index_of_codes(schedule), producers(schedule)[codes]
    needs = np.where(needs >= 0, index_of[needs], -1)
    places_ = np.arange(len(codes))
    is_first = np.isin(places_, offsets[:-1])
    computed = np.where(is_first, -1, places_ - 1)
    load = np.full_like(needs, -1)
    if not schedule.has_copies:
        return Waits(computed, computed, needs, load)
    kinds, stages, microbatches = schedule.fields(codes)
    turn = np.full_like(needs, -1)
    _pass_copies(kinds, is_first, end, computed, turn, work=len(codes))
    is_backward = (kinds == Kind.B) | (kinds == Kind.BW)
    loads = schedule.by_kind(index_of)[Kind.L]
    load[is_backward] = loads[stages[is_backward], microbatches[is_backward]]
    is_load = kinds == Kind.L
    needs[is_load] = turn[is_load]
    copies, before = _engine_turns(schedule, start, end, ranks_per_engine)
    turn[copies] = before
    return Waits(computed, turn, needs, load)


@hot
def _pass_copies(
    kinds: Codes, is_first: NDArray[np.bool_], end: Floats, computed: Codes, turn: Codes
) -> None:
    """Say what each rank computed before an op, and what it was busy with until it came to it."""
    last_op = last = -1
    for index in range(len(kinds)):
        if is_first[index]:
            last_op = last = -1
        computed[index], turn[index] = last_op, last
        if kinds[index] == _O:
            if last < 0 or end[index] > end[last]:
                last = index
        elif kinds[index] != _L:
            last_op = last = index


def _engine_turns(
    schedule: Schedule, start: Floats, end: Floats, ranks_per_engine: int
) -> tuple[Codes, Codes]:
    """List the copies, and the one before each on its engine.

    O come in the order of their forwards, L in that of the rank; where ranks share an engine, in
    the order in which they started.
    """
    codes, offsets = schedule.flat()
    kinds, _, _ = schedule.fields(codes)
    copies = np.flatnonzero((kinds == Kind.O) | (kinds == Kind.L))
    holders = np.searchsorted(offsets, copies, side="right") - 1
    engines = 2 * (holders // ranks_per_engine) + (kinds[copies] == Kind.L)
    keys = _keys(schedule, start, end, ranks_per_engine)
    order = np.lexsort((*(key[copies] for key in keys), engines))
    before = np.full(len(copies), -1)
    same = engines[order[1:]] == engines[order[:-1]]
    before[order[1:]] = np.where(same, copies[order[:-1]], -1)
    return copies, before


def _asked_at(schedule: Schedule) -> Floats:
    """Number all ops in the order in which they can begin: O right behind its F."""
    codes, _ = schedule.flat()
    index_of = index_of_codes(schedule)
    asked: Floats = np.empty(len(codes))
    asked[index_of[run_order(schedule)]] = np.arange(len(codes))
    is_offload = schedule.fields(codes)[0] == Kind.O
    asked[is_offload] = asked[index_of[producers(schedule)[codes[is_offload]]]] + 0.5
    return asked


def order_of_waits(schedule: Schedule, start: Floats, end: Floats, ranks_per_engine: int) -> Codes:
    """List the indices of all ops so that each comes behind whatever it waits for."""
    if not schedule.has_copies:
        return index_of_codes(schedule)[run_order(schedule)]
    return np.lexsort(_keys(schedule, start, end, ranks_per_engine))


def _keys(
    schedule: Schedule, start: Floats, end: Floats, ranks_per_engine: int
) -> tuple[Floats, ...]:
    """Give the keys of that order, the last one first; what takes no time precedes what does."""
    asked = _asked_at(schedule)
    return (asked, end, start) if ranks_per_engine > 1 else (asked,)
