"""Does list scheduling stay within every limit, and end, whatever the preferences?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import costs_for, placements
from zerobubble.costs import Costs
from zerobubble.ir import linear
from zerobubble.search.limits import smallest_memory
from zerobubble.search.orders.arrangement import arrange
from zerobubble.search.orders.listing import Preferences, keys_of, list_ops, place_all
from zerobubble.search.orders.reversing import list_ops_backwards
from zerobubble.search.problem import Problem
from zerobubble.search.rules.portfolio import FixedRule
from zerobubble.verify import verify


@st.composite
def problems(draw):
    """Draw any placement and costs, and limits from the smallest possible to ample."""
    placement = draw(placements())
    costs = draw(costs_for(placement.num_stages))
    ample = draw(st.floats(1, 4))
    limits = smallest_memory(costs, placement) * ample
    return Problem(costs, placement, draw(st.integers(1, 6)), limits)


@st.composite
def preferences_for(draw, problem):
    """Draw any preferences."""
    num_stages, num_ranks = problem.placement.num_stages, problem.placement.num_ranks
    keys = st.lists(st.integers(-20, 20), min_size=num_stages, max_size=num_stages)
    caps = st.lists(st.integers(1, 8), min_size=num_stages, max_size=num_stages)
    budgets = st.lists(st.floats(-1, 10), min_size=num_ranks, max_size=num_ranks)
    return Preferences(
        keys_of(problem, [draw(keys) for _ in range(3)], draw(st.floats(0, 10))),
        *(np.array(draw(caps), dtype=np.int64) for _ in range(2)),
        draw(st.floats(0, 1)),
        draw(st.sampled_from([0.0, np.inf])),
        draw(st.sampled_from([0.0, 1.0])),
        np.array(draw(budgets)),
    )


@settings(max_examples=300)
@given(st.data())
def test_any_preferences_give_a_whole_schedule_within_the_limits(data):
    problem = data.draw(problems())
    found = list_ops(problem, data.draw(preferences_for(problem)))
    verify(found.timeline().schedule, problem.costs, problem.limits)


def test_compiled_and_plain_python_give_the_same_schedules(monkeypatch):
    generator = np.random.default_rng(0)
    costs = Costs.of_ranks(linear(4), 1.0, 1.1, 0.7, 0.1, 0.4)
    problem = Problem(costs, linear(4), 6, 5.0)
    for _ in range(5):
        keys = (generator.normal(size=4) * 3 for _ in range(3))
        caps = (generator.integers(1, 8, size=4) for _ in range(2))
        table = keys_of(problem, list(keys), 2.8)
        preferences = Preferences(table, *caps, 0.5, np.inf, 1.0, np.full(4, 1.0))
        usual = list_ops(problem, preferences)
        with monkeypatch.context() as patch:
            patch.setattr("zerobubble.jit.SMALLEST_COMPILED_WORK", np.inf)
            plain = list_ops(problem, preferences)
        with monkeypatch.context() as patch:
            patch.setattr("zerobubble.jit.SMALLEST_COMPILED_WORK", 0)
            compiled = list_ops(problem, preferences)
        for found in (plain, compiled):
            np.testing.assert_array_equal(found.codes, usual.codes)
            assert (found.span, found.makespan) == (usual.span, usual.makespan)
    assert callable(place_all.compiled)


@pytest.mark.parametrize("least", [0, np.inf], ids=["compiled", "Python"])
@pytest.mark.parametrize("list_it", ["forwards", "backwards"])
def test_a_rank_that_is_looked_at_very_often_does_not_fill_the_heap(list_it, least, monkeypatch):
    """Its neighbours' ops take almost no time, so that inputs come long before they can run."""
    monkeypatch.setattr("zerobubble.jit.SMALLEST_COMPILED_WORK", least)
    times = np.array([0.001, 1.0, 1.0])
    costs = Costs(times, times, times, np.zeros(3), np.array([0.0, 1.0, 1.0]), np.zeros(3))
    problem = Problem(costs, linear(3), 1500, 1.0)
    rule = FixedRule("earliest", "none").preferences(problem, 0.0, None)
    found = list_ops(problem, rule)
    if list_it == "backwards":
        placed = list_ops_backwards(problem, -found.end, np.zeros(3), 0.5)
        assert placed is not None
        found = arrange(problem, placed[0])
    verify(found.timeline().schedule, costs, 1.0)


def with_times(problem, change):
    """Give the same problem with other times of F, B and W, and of transfers."""
    names = ("forward", "backward_input", "backward_weight", "transfer")
    costs = {name: change(getattr(problem.costs, name)) for name in names}
    return replace(problem, costs=replace(problem.costs, **costs))


def in_halves_and_tenths(problem):
    """Give a problem with times, all above 0, of which sums are exact; and one with rounded sums.

    A rank is told of what arrives before the W that makes use of it could start, so that nothing
    depends on which of two ranks that are free at the same time is looked at first.
    """
    halves = with_times(problem, lambda times: times + 0.5)
    transfer = halves.costs.transfer + halves.costs.backward_weight.max()
    halves = replace(halves, costs=replace(halves.costs, transfer=transfer))
    return halves, with_times(halves, lambda times: times / 10)


@settings(max_examples=300)
@given(st.data())
def test_rounding_decides_nothing(data):
    """Whether an op is worth a wait may not depend on the last bit of when it arrives."""
    problem = data.draw(problems())
    keys = np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(problem.num_ops)
    patience = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    num_ranks = problem.placement.num_ranks
    budgets = data.draw(st.lists(st.integers(-1, 9), min_size=num_ranks, max_size=num_ranks))
    makes_room = data.draw(st.sampled_from([0.0, 1.0]))
    uncapped = np.full(problem.placement.num_stages, 100)
    orders = []
    for each, unit in zip(in_halves_and_tenths(problem), (1.0, 0.1), strict=True):
        shares = np.array(budgets) * unit
        preferences = Preferences(
            keys * 1.0, uncapped, uncapped, patience, np.inf, makes_room, shares
        )
        backwards = list_ops_backwards(each, keys * 1.0, np.zeros(num_ranks), patience)
        orders.append([list_ops(each, preferences).codes.tolist()])
        orders[-1] += [] if backwards is None else [backwards[0].tolist()]
    assert orders[0] == orders[1]
