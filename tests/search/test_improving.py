"""Do justification and tabu search keep to the rules, and improve what can be improved?"""

from itertools import islice
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_listing import preferences_for, problems
from zerobubble.costs import Costs
from zerobubble.ir import BW, B, F, Schedule, W, linear, wave
from zerobubble.search.moves.tabu import tabu_searched
from zerobubble.search.orders.arrangement import arrange, split_codes
from zerobubble.search.orders.justify import best_justified, justified
from zerobubble.search.orders.listing import list_ops
from zerobubble.search.orders.reversing import list_ops_backwards
from zerobubble.search.problem import Problem
from zerobubble.search.rules.portfolio import FixedRule
from zerobubble.search.rules.starting import start_rules
from zerobubble.search.size import Size
from zerobubble.verify import verify


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_justified_is_whole_and_within_the_limits(data):
    problem = data.draw(problems())
    start = list_ops(problem, data.draw(preferences_for(problem)))
    for found in justified(start, 2, (0.0, 1.0), bound=0):
        verify(found.timeline().schedule, problem.costs, problem.limits)


@settings(max_examples=100)
@given(st.data())
def test_tabu_search_is_never_worse_and_stays_within_the_limits(data):
    problem = data.draw(problems())
    start = list_ops(problem, data.draw(preferences_for(problem)))
    [found] = tabu_searched([start], 100, bound=0)
    assert found.value <= start.value * (1 + 1e-9)
    verify(found.timeline().schedule, problem.costs, problem.limits)


def gpipe_like():
    """Give a needlessly long order: all F, then all B, then all W."""
    problem = Problem(Costs.uniform(3), linear(3), 6)
    orders = [[op(s, i) for op in (F, B, W) for i in range(6)] for s in range(3)]
    return arrange(problem, Schedule.from_ops("", linear(3), 6, orders).flat()[0])


def test_tabu_search_finds_the_order_without_a_bubble():
    """With F = B = W and memory for all microbatches ZB-H2 has none: 3 * 6."""
    start = gpipe_like()
    assert start.span == 22
    [found] = tabu_searched([start], 1_000, bound=0)
    assert found.span == 18


def test_tabu_search_stops_at_the_bound():
    [found] = tabu_searched([gpipe_like()], 10**12, bound=18 * (1 + 1e-12))
    assert found.span == 18


def test_orders_improved_side_by_side_are_those_improved_alone():
    starts = [gpipe_like(), gpipe_like()]
    alone = [tabu_searched([start], 40, bound=0)[0].codes for start in starts]
    together = [found.codes for found in tabu_searched(starts, 40, bound=0)]
    np.testing.assert_array_equal(alone, together)


def test_justification_closes_the_gaps_of_a_late_order():
    """W right after B holds up the second microbatch of 1F1B: it can go before."""
    orders = [
        [F(0, 0), F(0, 1), BW(0, 0), BW(0, 1)],
        [F(1, 0), BW(1, 0), F(1, 1), BW(1, 1)],
    ]
    problem = Problem(Costs.uniform(2), linear(2), 2)
    start = arrange(problem, split_codes(Schedule.from_ops("", linear(2), 2, orders)))
    best = min(found.makespan for found in justified(start, 3, (0.0, 1.0), bound=0))
    assert (start.makespan, best) == (8, 7)


def test_backwards_every_op_is_as_late_as_can_be():
    problem = Problem(Costs.uniform(2), linear(2), 1)
    codes, reversed_start = list_ops_backwards(problem, np.zeros(6), np.zeros(2), 0.0)
    assert codes.tolist() == [0, 2, 4, 1, 3, 5]
    # Both W end at the end, B of stage 0 just before its W, and so on back to F of stage 0.
    assert reversed_start.tolist() == [4, 3, 1, 2, 0, 0]


@pytest.mark.parametrize("way", ["justified", "moved"])
def test_compiled_and_plain_python_give_the_same_orders(way, monkeypatch):
    costs = Costs.of_ranks(wave(3, 4), 1.0, 1.1, 0.7, 0.1, 0.4)
    problem = Problem(costs, wave(3, 4), 6, 4.0)
    orders = []
    for least in (0, np.inf):
        monkeypatch.setattr("zerobubble.jit.SMALLEST_COMPILED_WORK", least)
        start = list_ops(problem, FixedRule("earliest", "none").preferences(problem, 0.0, None))
        if way == "moved":
            orders.append(tabu_searched([start], 300, 0)[0].codes)
        else:
            orders.append(list(justified(start, 2, (0.0, 1.0), 0))[-1].codes)
    np.testing.assert_array_equal(*orders)


def test_justification_ends_early():
    """At the bound at once, after four rounds without a gain, or when it is cancelled."""
    costs = Costs.of_ranks(wave(3, 4), 1.0, 1.1, 0.7, 0.1, 0.4)
    problem = Problem(costs, wave(3, 4), 6, 4.0)
    start = list_ops(problem, FixedRule("earliest", "none").preferences(problem, 0.0, None))
    assert best_justified(start, 16, (0.0,), start.value) == (start, 0)
    best, number = best_justified(start, 100, (0.0, 1.0), 0.0)
    values = [found.value for found in islice(justified(start, 100, (0.0, 1.0), 0.0), number)]
    assert best.value == min(values) < start.value
    assert number == values.index(best.value) + 1 + 8 < 200
    cancelled = Event()
    cancelled.set()
    assert best_justified(start, 16, (0.0,), 0.0, cancelled)[1] == 1


def test_what_is_justified_first_is_what_was_found():
    """Also if a rule has a budget, which depends on what had been found until then."""
    costs = Costs.of_ranks(wave(8, 4), 18.522, 18.086, 9.337, 0.601, 0.366)
    size = Size(Problem(costs, wave(8, 4), 24, 7.0))
    size.try_rules(start_rules(size.problem), 120_000)
    assert [size.list_again(each).value for each in size.best_tries()] == [
        each.value for each in size.best_tries()
    ]
    before = size.value
    size.justify_rules()
    assert size.value < before
