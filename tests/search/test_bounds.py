"""Does no schedule beat the bounds, and do they say what forbids it?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import PLAIN, costs_for, schedules
from zerobubble.costs import Costs
from zerobubble.ir import BW, B, F, Placement, Schedule, W, linear, looped, wave
from zerobubble.schedules import REGISTRY, build
from zerobubble.search.bounds import BOUNDS, lower_bound, lower_bounds
from zerobubble.simulate import simulate
from zerobubble.verify import verify

OBJECTIVES = ("span", "makespan")
NAMES = {"load", "warm-up", "drain", "path", "memory-area", "turn", "slot-area"}


def check_no_bound_is_beaten(schedule, costs, slack=0.0):
    """Compare a schedule with every bound for the memory that it needs, and some more."""
    timeline = simulate(schedule, costs)
    limits = np.array(timeline.peak_memory_per_rank) + slack
    verify(schedule, costs, limits)
    for objective in OBJECTIVES:
        time = getattr(timeline, objective)
        for bound in bounds_of(schedule, costs, limits, objective):
            assert bound.value <= time * (1 + 1e-9), bound


def bounds_of(schedule, costs, limits, objective):
    return lower_bounds(costs, schedule.placement, schedule.num_microbatches, limits, objective)


@st.composite
def schedules_and_costs(draw):
    schedule = draw(schedules(max_microbatches=6))
    return schedule, draw(costs_for(schedule.num_stages) | even_costs(schedule.num_stages))


@st.composite
def even_costs(draw, num_stages):
    """Costs that are the same on all stages: the bounds count whole activations then."""
    f, b, w, transfer, size, freed = (draw(st.integers(0, 9)) / 4 for _ in range(6))
    kept = 1 if size == 0 else size / (size + freed)
    return Costs.uniform(
        num_stages, f=f, b=b, w=w, transfer=transfer, activation=size + freed, kept=kept
    )


@settings(max_examples=200)
@given(schedules_and_costs(), st.sampled_from((0.0, 0.25, 1.0, np.inf)))
def test_no_random_schedule_beats_a_bound(case, slack):
    check_no_bound_is_beaten(*case, slack)


SIZES = ((1, 1), (1, 5), (2, 2), (2, 6), (3, 6), (4, 4), (4, 12), (8, 8), (8, 24))
COSTS = ((1, 1, 1, 0, 1), (4, 4, 3, 1, 0.4), (18.522, 18.086, 9.337, 0.601, 0.366), (3, 7, 1, 5, 0))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_no_registered_schedule_beats_a_bound(name, p, m):
    for *times, kept in COSTS:
        costs = Costs.of_ranks(REGISTRY[name].place(p), *times, kept=kept)
        check_no_bound_is_beaten(build(name, p, m, costs), costs)


@pytest.mark.parametrize("name", PLAIN)
def test_no_registered_schedule_beats_a_bound_on_uneven_stages(name):
    placement = REGISTRY[name].place(4)
    generator = np.random.default_rng(0)
    for _ in range(20):
        columns = generator.uniform(0, 2, (6, placement.num_stages))
        columns[4] += columns[5]
        costs = Costs(*columns)
        check_no_bound_is_beaten(build(name, 4, 8, costs), costs)


def one_after_the_other(placement, num_microbatches):
    """Run every microbatch alone: the schedule with the least memory."""
    held = [placement.stages_of(rank) for rank in range(placement.num_ranks)]
    return Schedule.from_ops(
        "alone",
        placement,
        num_microbatches,
        [
            [
                op
                for i in range(num_microbatches)
                for op in (*(F(s, i) for s in stages), *(BW(s, i) for s in reversed(stages)))
            ]
            for stages in held
        ],
    )


PLACEMENTS = (linear(3), wave(2, 2), looped(2, 3), Placement((0, 1, 0)), Placement((1, 0, 0, 2, 1)))


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_schedule_of_least_memory_beats_no_bound(placement):
    costs = Costs.uniform(placement.num_stages, f=1, b=2, w=1, transfer=0.5)
    check_no_bound_is_beaten(one_after_the_other(placement, 4), costs)


def test_memory_that_is_no_whole_number_of_activations():
    """2.5 activations hold two for B beside the half that one W needs: three slots, not two."""
    m = 6
    ops = [F(0, 0), F(0, 1)]
    for i in range(m):
        ops += [B(0, i), *([W(0, i - 1)] if i else []), *([F(0, i + 2)] if i + 2 < m else [])]
    schedule = Schedule.from_ops("leftover", linear(1), m, [[*ops, W(0, m - 1)]])
    costs = Costs.uniform(1, f=1, b=1, w=4, kept=0.5)
    assert simulate(schedule, costs).peak_memory == 2.5
    check_no_bound_is_beaten(schedule, costs)


def test_slots_fill_and_empty_by_the_shortest_ops():
    """Here both slots are full all the time: a bound that counts longer ramps is too high."""
    nothing, one = np.array([0, 0]), np.array([0, 1])
    costs = Costs(one, one, nothing, nothing, np.ones(2), np.ones(2))
    schedule = one_after_the_other(Placement((0, 0)), 4)
    check_no_bound_is_beaten(schedule, costs)
    bounds = lower_bounds(costs, schedule.placement, 4, memory=2)
    assert [bound.value for bound in bounds if bound.name == "slot-area"] == [8]


@given(schedules(), st.data())
def test_less_memory_never_lowers_a_bound(schedule, data):
    costs = data.draw(costs_for(schedule.num_stages))
    peaks = np.array(simulate(schedule, costs).peak_memory_per_rank)
    extra = data.draw(st.integers(1, 8)) / 4
    for objective in OBJECTIVES:
        tight, loose, unlimited = (
            bounds_of(schedule, costs, limits, objective)[0].value
            for limits in (peaks, peaks + extra, np.inf)
        )
        assert tight >= loose * (1 - 1e-9)
        assert loose >= unlimited * (1 - 1e-9)


@given(schedules(), st.data())
def test_the_makespan_is_bounded_no_less_than_the_span(schedule, data):
    costs = data.draw(costs_for(schedule.num_stages))
    peaks = simulate(schedule, costs).peak_memory_per_rank
    span, makespan = (bounds_of(schedule, costs, peaks, o)[0].value for o in OBJECTIVES)
    assert makespan >= span * (1 - 1e-9)


def two_ranks(f=(1, 1), b=1, w=1, transfer=0, kept=1):
    costs = Costs.uniform(2, b=b, w=w, transfer=transfer, kept=kept)
    return replace(costs, forward=np.array(f))


@pytest.mark.parametrize(
    ("reason", "costs", "num_microbatches", "memory"),
    [
        ("rank 1, load, limited by its work", two_ranks(f=(1, 3)), 9, np.inf),
        ("rank 0, warm-up, limited by memory", two_ranks(), 9, 2),
        ("rank 0, warm-up, limited by the number of microbatches", two_ranks(), 1, np.inf),
        ("rank 0, drain, limited by memory", two_ranks(transfer=0.25), 9, 2),
        ("ranks 0 and 1, path, limited by the work of rank 1", two_ranks(w=0.1), 9, np.inf),
        ("rank 0, slot-area, limited by memory", two_ranks(kept=0.75), 99, 1.5),
    ],
)
def test_reasons(reason, costs, num_microbatches, memory):
    assert lower_bound(costs, linear(2), num_microbatches, memory).reason == reason


def test_the_reason_where_stages_differ_in_size():
    costs = replace(Costs.uniform(4, transfer=1, kept=0), activation=np.array([2, 1, 1, 1]))
    bound = lower_bound(costs, wave(2, 2), 99, memory=4)
    assert bound.reason == "rank 0, memory-area, limited by memory"


def test_the_reason_of_a_turn():
    costs = Costs.uniform(8, transfer=1)
    bounds = lower_bounds(costs, wave(4, 2), 9, memory=6)
    assert bounds[0].reason == "ranks 0 and 3, turn, limited by memory"
    assert {bound.name for bound in bounds} == NAMES
    assert len(bounds) == len(BOUNDS) == len(NAMES)
    values = [bound.value for bound in bounds]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("unit", [1e-300, 1e-163, 1e90])
def test_the_unit_of_sizes_does_not_matter(unit):
    """Squares of what is held in a very large unit are too small for a number."""
    placement = wave(4, 2)
    costs = Costs.of_ranks(placement, 1, 1.2, 0.7, 0.1, 0.4)
    times = (costs.forward, costs.backward_input, costs.backward_weight, costs.transfer)
    other_unit = Costs(*times, costs.activation * unit, costs.activation_kept * unit)
    for memory in (1.5, 2.5, 4.0):
        expected = lower_bounds(costs, placement, 12, memory)
        found = lower_bounds(other_unit, placement, 12, memory * unit)
        assert [each.name for each in found] == [each.name for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-12)
