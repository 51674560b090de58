"""Do copies run when they should? Against a fixed point of the rules, one rule after the other."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_of_copies_for, random_schedule, with_random_copies
from zerobubble.costs import Costs
from zerobubble.graph import producers
from zerobubble.ir import BW, F, Kind, L, O, Placement, Schedule, linear
from zerobubble.simulate import simulate, travels_of_ops

_COPIES = (Kind.O, Kind.L)


def before_on_engines(schedule, ranks_per_engine, start=None):
    """What comes right before each copy on its engine: by ``start``, or by the order of a rank."""
    engines = {}
    for rank in range(schedule.num_ranks):
        for op in schedule.ops(rank):
            copy = O(*op[1:]) if op.kind == Kind.F else op
            if copy.kind in _COPIES and op.kind != Kind.O and schedule.has(copy.kind)[copy[1:]]:
                engine = (rank // ranks_per_engine, copy.kind)
                engines.setdefault(engine, []).append(schedule.code(copy))
    if start is not None:
        for copies in engines.values():
            copies.sort(key=start.__getitem__)
    return {b: a for copies in engines.values() for a, b in pairwise(copies)}


def times_of(schedule, costs, before):
    """Raise every start to what the rules ask until none is too early."""
    needs, travels, durations = producers(schedule), travels_of_ops(schedule, costs), {}
    start, end = np.zeros(schedule.num_codes), np.zeros(schedule.num_codes)
    for code in schedule.flat()[0].tolist():
        durations[code] = costs.durations()[schedule.op(code)[:2]]
    is_loaded = schedule.has(Kind.L)
    for _ in range(2 * len(durations)):
        last = start.copy()
        for order in schedule.orders:
            free = 0.0
            for code in order.tolist():
                kind, stage, microbatch = schedule.op(code)
                ready = [0.0 if kind == Kind.O else free]
                if needs[code] >= 0:
                    ready.append(end[needs[code]] + travels[code // schedule.num_microbatches])
                if kind in (Kind.B, Kind.BW) and is_loaded[stage, microbatch]:
                    ready.append(end[schedule.code(L(stage, microbatch))])
                if code in before:
                    ready.append(end[before[code]])
                start[code] = max(ready)
                end[code] = start[code] + durations[code]
                free = free if kind == Kind.L else max(free, end[code])
        if (last == start).all():
            return start, end
    raise AssertionError("the ops wait for each other in a circle")


@given(st.data())
def test_times_are_those_that_the_rules_give(data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    ranks = [*range(rng.randint(1, 4))]
    placement = Placement(
        (*rng.sample(ranks, len(ranks)), *rng.choices(ranks, k=rng.randint(0, 3)))
    )
    schedule = random_schedule(rng, placement, rng.randint(1, 4), rng.choice((0, 0.5, 1)))
    schedule = with_random_copies(rng, schedule)
    costs = data.draw(costs_of_copies_for(schedule.num_stages))
    shared = costs.ranks_per_engine
    start, end = times_of(schedule, costs, before_on_engines(schedule, 1))
    if shared > 1:
        copies = [code for code in schedule.flat()[0] if schedule.op(code).kind in _COPIES]
        if len({start[code] for code in copies}) < len(copies):
            return  # of those that start together, either may go first
        start, end = times_of(schedule, costs, before_on_engines(schedule, shared, start))
    found = simulate(schedule, costs)
    for rank, order in enumerate(schedule.orders):
        assert found.start[rank].tolist() == start[order].tolist()
        assert found.end[rank].tolist() == end[order].tolist()


def test_the_copy_that_could_start_first_goes_first():
    """F1 of stage 0 starts first and ends last: its copy waits for that of the short one."""
    orders = [
        [F(0, 0), F(0, 1), O(0, 1), L(0, 1), BW(0, 0), BW(0, 1)],
        [F(1, 0), O(1, 0), L(1, 0), BW(1, 0), F(1, 1), BW(1, 1)],
    ]
    schedule = Schedule.from_ops("mine", linear(2), 2, orders)
    one = np.ones(2)
    costs = Costs([5, 1], one, one, 0 * one, one, one, offload=[1, 6], load=one, ranks_per_engine=2)
    timeline = simulate(schedule, costs)
    times = {str(t.op): (t.start, t.end) for rank in (0, 1) for t in timeline.timed_ops(rank)}
    assert times["F1 of stage 0"] == (5, 10)
    assert times["O0 of stage 1"] == (6, 12)
    assert times["O1 of stage 0"] == (12, 13)


@pytest.mark.parametrize("shared", [1, 2])
def test_engines_of_one_rank_serve_both_directions_at_once(shared):
    ops = [F(0, 0), F(0, 1), O(0, 0), L(0, 0), BW(0, 0), O(0, 1), L(0, 1), BW(0, 1)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    costs = Costs([1], [1], [0], [0], [1], [1], offload=[3], load=[2], ranks_per_engine=shared)
    assert simulate(schedule, costs).start[0].tolist() == [0, 1, 1, 4, 6, 4, 7, 9]
