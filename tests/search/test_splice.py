"""Is a spliced schedule whole and as good as one built for as many microbatches?"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import costs_for, lists_of_ops, placements, with_orders
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import BW, B, F, Placement, Schedule, W, linear
from zerobubble.schedules import build
from zerobubble.schedules.zb_h1 import delayed_weights
from zerobubble.search.limits import smallest_memory
from zerobubble.search.orders.listing import Preferences, keys_of, list_ops
from zerobubble.search.problem import Problem
from zerobubble.search.splice import splice
from zerobubble.simulate import simulate
from zerobubble.verify import verify, violations


def idle(timeline):
    return timeline.span - max(timeline.work_per_rank)


def test_zb_v_keeps_its_peak_and_its_idle_time():
    """Times of the 1.5B model of the paper, halved between the stages of a rank."""
    costs = Costs.uniform(
        16, f=5.6735, b=5.624, w=4.066, transfer=0.377, activation=0.5, kept=0.432432
    )
    short, direct = (build("zb-v", 8, m, costs) for m in (24, 64))
    spliced = splice(short, 64)
    verify(spliced, costs, memory=8)
    before, after = simulate(short, costs), simulate(spliced, costs)
    assert after.peak_memory_per_rank == before.peak_memory_per_rank
    assert idle(after) == pytest.approx(idle(simulate(direct, costs)), abs=1e-9)
    assert idle(after) == pytest.approx(33.9265, abs=1e-9)


def one_f_one_b(p, m):
    """1F1B with the backward in two parts, W right after B."""
    orders = (delayed_weights(r, m, warm_up=p - r, delay=0) for r in range(p))
    return Schedule.from_ops("split-1f1b", linear(p), m, list(orders))


@pytest.mark.parametrize("direct", [one_f_one_b, partial(build, "zb-h1"), partial(build, "zb-h2")])
def test_schedules_without_costs_are_extended_to_what_they_would_be(direct):
    p = 6
    assert splice(direct(p, 3 * p), 8 * p) == direct(p, 8 * p)


def uneven(m):
    """One microbatch after the other on ranks that hold one, two and one stage."""
    stages, orders = {0: [0], 1: [1, 2], 2: [3]}, []
    for mine in stages.values():
        orders.append([])
        for i in range(m):
            orders[-1] += [F(s, i) for s in mine] + [B(s, i) for s in reversed(mine)]
            orders[-1] += [W(s, i) for s in mine]
    return Schedule.from_ops("uneven", Placement((0, 1, 1, 2)), m, orders)


def test_ranks_may_hold_different_numbers_of_stages():
    verify(uneven(5))
    assert splice(uneven(5), 11) == uneven(11)


def in_groups(size, m):
    """The forwards of so many microbatches, then their B, then their W."""
    groups = [range(g, min(m, g + size)) for g in range(0, m, size)]
    ops = [op(0, i) for group in groups for op in (F, B, W) for i in group]
    return Schedule.from_ops("groups", linear(1), m, [ops])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_period_may_have_several_microbatches(size):
    short = in_groups(size, 5 * size)
    assert splice(short, 9 * size) == in_groups(size, 9 * size)
    assert splice(short, 9 * size + 1) is None


def test_periods_of_more_than_four_microbatches_are_not_looked_for():
    assert splice(in_groups(5, 25), 30) is None


def all_then_all(m):
    """GPipe with the backward in two parts."""
    orders = [[op(s, i) for op in (F, B, W) for i in range(m)] for s in range(3)]
    return Schedule.from_ops("all", linear(3), m, orders)


def fused(m):
    orders = [[op(0, i) for i in range(m) for op in (F, BW)]]
    return Schedule.from_ops("fused", linear(1), m, orders)


@pytest.mark.parametrize(
    "schedule", [all_then_all(9), all_then_all(1), fused(9), build("1f1b", 3, 9), one_f_one_b(4, 4)]
)
def test_without_a_period_there_is_none(schedule):
    assert splice(schedule, 3 * schedule.num_microbatches) is None


def test_one_rank_without_a_period_is_enough():
    orders = lists_of_ops(one_f_one_b(3, 9))
    orders[1] = lists_of_ops(all_then_all(9))[1]
    assert splice(with_orders(one_f_one_b(3, 9), orders), 18) is None


def test_nothing_is_added_to_as_many_microbatches():
    assert splice(one_f_one_b(3, 9), 9) == one_f_one_b(3, 9)


def test_fewer_microbatches_are_refused():
    with pytest.raises(
        UsageError, match=r"split-1f1b has 9 microbatches: give at least as many, not 8"
    ):
        splice(one_f_one_b(3, 9), 8)


@st.composite
def listed(draw):
    """Draw a problem and the schedule that some priorities of its stages lead to."""
    placement = draw(placements())
    num_stages, num_ranks = placement.num_stages, placement.num_ranks
    costs = draw(costs_for(num_stages))
    limits = smallest_memory(costs, placement) * draw(st.floats(1, 4))
    problem = Problem(costs, placement, draw(st.integers(6, 20)), limits)
    keys = st.lists(st.integers(-20, 20), min_size=3 * num_stages, max_size=3 * num_stages)
    uncapped = np.full(num_stages, problem.num_microbatches)
    preferences = Preferences(
        keys_of(problem, draw(keys), draw(st.floats(0, 10))),
        caps=uncapped,
        warm_caps=uncapped,
        patience=draw(st.floats(0, 1)),
        leeway=np.inf,
        makes_room=1.0,
        budgets=np.full(num_ranks, -1.0),
    )
    return problem, list_ops(problem, preferences).timeline().schedule


def peaks(schedule, costs):
    """Give the peak memory of every rank, which its order alone decides."""
    changes = costs.memory_changes()
    fields = map(schedule.fields, schedule.orders)
    return [np.cumsum(changes[kinds, stages]).max() for kinds, stages, _ in fields]


@settings(max_examples=200)
@given(listed(), st.integers(1, 20))
def test_every_rank_runs_each_op_once_and_needs_no_more_memory(found, num_added):
    problem, schedule = found
    spliced = splice(schedule, schedule.num_microbatches + num_added)
    if spliced is None:
        return
    assert spliced.num_microbatches == schedule.num_microbatches + num_added
    for order in spliced.orders:
        assert len(np.unique(order)) == len(order)
    rules = {violation.rule for violation in violations(spliced, problem.costs, np.inf)}
    assert rules <= {"no-cycle"}  # what a rank does alone is right
    assert peaks(spliced, problem.costs) == pytest.approx(peaks(schedule, problem.costs), abs=1e-9)
