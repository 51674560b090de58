"""Does a shape taken from an order hold its rhythm, also on more ranks?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_listing import preferences_for, problems
from zerobubble.costs import Costs
from zerobubble.ir import B, F, Kind, Schedule, W, linear, wave
from zerobubble.schedules import build
from zerobubble.search.orders.arrangement import arrange, split_codes
from zerobubble.search.orders.listing import list_ops
from zerobubble.search.problem import Problem
from zerobubble.search.rules.shape import Reshaping, Shape
from zerobubble.verify import verify


def order_of(name, num_ranks, num_microbatches, placement, costs):
    problem = Problem(costs, placement, num_microbatches)
    schedule = build(name, num_ranks, num_microbatches, costs)
    found = arrange(problem, split_codes(schedule))
    assert found is not None
    return found


def test_the_shape_of_1f1b_is_its_closed_form():
    """B of a stage starts when that of the next one ends, W follows, and p-s are in flight."""
    p = 4
    found = order_of("1f1b", p, 16, linear(p), Costs.uniform(p))
    shape = Shape.fitted(found, found.problem)
    steady_b = shape.keys[Kind.B]
    np.testing.assert_array_equal(np.diff(steady_b), -1.0)
    np.testing.assert_array_equal(shape.keys[Kind.W], steady_b + 1)
    np.testing.assert_array_equal(shape.caps, [4, 3, 2, 1])
    np.testing.assert_array_equal(shape.warm_caps, [4, 3, 2, 1])


def test_on_more_ranks_caps_and_starts_grow_and_ends_stay_ends():
    few, many = (Problem(Costs.uniform(p), linear(p), 16) for p in (4, 8))
    found = order_of("1f1b", 4, 16, linear(4), few.costs)
    small, large = Shape.fitted(found, few), Shape.fitted(found, many)
    np.testing.assert_array_equal(large.caps[[0, 7]], 2 * small.caps[[0, 3]])
    np.testing.assert_allclose(large.keys[:, [0, 7]], 2 * small.keys[:, [0, 3]])
    assert (np.diff(large.caps) <= 0).all()


def test_listing_by_the_shape_of_1f1b_is_as_short_as_1f1b():
    """Unlike BW of 1F1B, the W that keys delay lets the next B begin."""
    found = order_of("1f1b", 4, 16, linear(4), Costs.uniform(4))
    problem = Problem(found.problem.costs, linear(4), 16, 4.0)
    shape = Shape.fitted(found, problem)
    assert list_ops(problem, shape.preferences(problem, 0.0, None)).span <= found.span


@settings(max_examples=60)
@given(st.data())
def test_any_rhythm_leads_to_an_order_within_the_limits(data):
    problem = data.draw(problems())
    start = list_ops(problem, data.draw(preferences_for(problem)))
    for shape in Shape.fitted(start, problem).variants():
        found = list_ops(problem, shape.preferences(problem, 0.0, None))
        verify(found.timeline().schedule, problem.costs, problem.limits)


@pytest.mark.parametrize(("few", "many"), [(1, 2), (2, 3), (3, 8)])
def test_a_rhythm_is_carried_to_more_ranks(few, many):
    costs = {p: Costs.of_ranks(wave(p, 4), 1.0, 1.1, 0.7, 0.1, 0.4) for p in (few, many)}
    copy = Problem(costs[few], wave(few, 4), 6, 2.0 * few)
    order = list_ops(copy, Shape.fitted(list_order(copy), copy).preferences(copy, 0.0, None))
    problem = Problem(costs[many], wave(many, 4), 9, 2.0 * many)
    for shape in Shape.fitted(order, problem).variants():
        found = list_ops(problem, shape.preferences(problem, 0.0, None))
        verify(found.timeline().schedule, problem.costs, problem.limits)


def list_order(problem):
    from zerobubble.search.rules.portfolio import FixedRule

    rule = FixedRule("earliest", "none")
    return list_ops(problem, rule.preferences(problem, 0.0, None))


def test_a_backward_that_ends_as_a_forward_starts_is_not_in_flight():
    """With B before W, F of the next microbatch starts just as B of this one ends."""
    orders = [[F(0, 0), B(0, 0), F(0, 1), B(0, 1), F(0, 2), B(0, 2), W(0, 0), W(0, 1), W(0, 2)]]
    problem = Problem(Costs.uniform(1), linear(1), 3)
    found = arrange(problem, Schedule.from_ops("", linear(1), 3, orders).flat()[0])
    assert Shape.fitted(found, problem).caps.tolist() == [1]


@pytest.mark.parametrize(("smallest", "growths"), [(1, {0, 1}), (3, {0})])
def test_a_swap_keeps_the_sum_of_a_rank_but_for_the_least_cap_of_one(smallest, growths):
    placement = wave(2, 2)
    reshaping = Reshaping(Problem(Costs.uniform(4), placement, 4))
    caps, generator = np.array([smallest, 3, 5, 7]), np.random.default_rng(0)
    shape, seen = Shape(np.zeros((3, 4)), caps, caps, 0.0, 1.0, np.full(2, -1.0)), set()
    for _ in range(100):
        after = reshaping._swap_caps(shape, generator)
        [change] = [c - caps for c in (after.caps, after.warm_caps) if c is not caps]
        of_ranks = [int(change[list(placement.stages_of(rank))].sum()) for rank in range(2)]
        assert (caps + change).min() >= 1
        assert of_ranks == [0, 0] or (of_ranks == [1, 0] and change[0] == 0)
        seen.add((sum(of_ranks), int(np.abs(change).sum())))
    assert {growth for growth, _ in seen} == growths
    assert (0, 2) in seen
