"""Do bare orders take the times that the simulator gives, and are wrong ones refused?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, schedules
from zerobubble.costs import Costs
from zerobubble.ir import BW, B, F, Kind, Schedule, W, linear
from zerobubble.schedules import build
from zerobubble.search.orders.arrangement import arrange, arrange_within_limits, split_codes
from zerobubble.search.problem import Problem
from zerobubble.simulate import simulate


def is_split(schedule):
    return all((schedule.fields(order)[0] != Kind.BW).all() for order in schedule.orders)


@given(st.data())
def test_times_are_those_of_the_simulator(data):
    schedule = data.draw(schedules().filter(is_split))
    costs = data.draw(costs_for(schedule.num_stages))
    problem = Problem(costs, schedule.placement, schedule.num_microbatches)
    found, expected = arrange(problem, schedule.flat()[0]), simulate(schedule, costs)
    assert (found.span, found.makespan) == (expected.span, expected.makespan)
    timeline = found.timeline()
    for rank in range(schedule.num_ranks):
        np.testing.assert_array_equal(timeline.schedule.orders[rank], schedule.orders[rank])
        np.testing.assert_array_equal(timeline.start[rank], expected.start[rank])
        np.testing.assert_array_equal(timeline.end[rank], expected.end[rank])


@given(st.data())
def test_splitting_a_fused_backward_takes_no_longer(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_for(schedule.num_stages))
    problem = Problem(costs, schedule.placement, schedule.num_microbatches)
    found, expected = arrange(problem, split_codes(schedule)), simulate(schedule, costs)
    assert found.span <= expected.span + 1e-9
    assert found.timeline().peak_memory <= expected.peak_memory + 1e-9


def test_a_fused_backward_becomes_b_and_w_in_its_place():
    schedule = Schedule.from_ops("fused", linear(1), 2, [[F(0, 0), BW(0, 0), F(0, 1), BW(0, 1)]])
    expected = [F(0, 0), B(0, 0), W(0, 0), F(0, 1), B(0, 1), W(0, 1)]
    assert (
        split_codes(schedule).tolist()
        == Schedule.from_ops("", linear(1), 2, [expected]).flat()[0].tolist()
    )


def test_ranks_that_wait_for_each_other_are_no_arrangement():
    orders = [[B(0, 0), F(0, 0), W(0, 0)], [F(1, 0), B(1, 0), W(1, 0)]]
    circle = Schedule.from_ops("circle", linear(2), 1, orders)
    assert arrange(Problem(Costs.uniform(2), linear(2), 1), circle.flat()[0]) is None


@pytest.mark.parametrize(("limit", "fits"), [(3.0, True), (2.9, False)])
def test_a_limit_holds_for_every_rank(limit, fits):
    problem = Problem(Costs.uniform(3), linear(3), 6, [limit, 3, 3])
    found = arrange_within_limits(problem, split_codes(build("zb-h1", 3, 6)), "zb-h1")
    assert (found is not None) == fits


def test_an_order_that_breaks_a_rule_is_refused():
    problem = Problem(Costs.uniform(1), linear(1), 2)
    orders = [[F(0, 1), F(0, 0), B(0, 0), W(0, 0), B(0, 1), W(0, 1)]]
    codes = Schedule.from_ops("late", linear(1), 2, orders).flat()[0]
    assert arrange_within_limits(problem, codes, "late") is None
