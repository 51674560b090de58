"""Does the frontier hold the proved values, fall with memory, and lie below the named schedules?"""

import sys
from itertools import pairwise

import numpy as np
import pytest

from tests.strategies import PLAIN
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import linear, looped, wave
from zerobubble.search import frontier, search, sweep
from zerobubble.search.auto import AUTO
from zerobubble.search.placements import PLACEMENTS
from zerobubble.search.sweep import time_of
from zerobubble.verify import verify

TIMES = (4, 5, 3, 0.5, 0.4)


def measured(placement):
    return Costs.of_ranks(placement, *TIMES)


@pytest.fixture(scope="module")
def unit():
    """Equal times without communication: p = 4, m = 8."""
    return frontier(Costs.of_ranks, 4, 8)


@pytest.fixture(scope="module", params=["span", "makespan"])
def other(request):
    """Unequal times with communication: p = 3, m = 6."""
    return frontier(measured, 3, 6, objective=request.param)


def curve(found, name):
    """Give the points of a placement by memory limit."""
    return {point.memory: point for point in found.points if str(point.placement) == name}


def test_the_grid_has_every_microbatch_up_to_twice_the_ranks(unit):
    assert unit.limits == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [str(place) for place in unit.placements] == [*PLACEMENTS]
    assert all([*curve(unit, name)] == unit.limits for name in PLACEMENTS)


def test_linear_at_the_memory_of_1f1b_has_the_proved_bubble_of_zb_h1(unit):
    point = curve(unit, "linear")[4]
    assert point.is_proved_optimal
    assert [point.value, point.bound] == pytest.approx([8 * 3 + (4 - 1) * (1 + 1 - 1)] * 2)
    assert [point.bubble, point.bound_bubble] == pytest.approx([3 / 27] * 2)


def test_linear_without_a_bubble_needs_almost_twice_that_memory(unit):
    bubbles = {memory: point.bubble for memory, point in curve(unit, "linear").items()}
    assert [memory for memory, bubble in bubbles.items() if bubble == 0] == [7, 8]


def test_a_v_has_no_bubble_in_the_memory_of_1f1b(unit):
    points = curve(unit, "v")
    assert [points[memory].bubble for memory in (4, 5, 6, 7, 8)] == [0] * 5
    assert points[3].bubble > 0
    assert points[4].timeline.peak_memory == 4


def test_one_microbatch_at_a_time_waits_for_all_other_ranks(unit):
    """On a linear placement: m passes of p(F + B) and the W in between."""
    point = curve(unit, "linear")[1]
    assert point.is_proved_optimal
    assert point.value == pytest.approx(8 * (4 * (1 + 1) + 1))


def test_more_memory_is_never_worse_and_every_schedule_fits(other):
    for name in PLACEMENTS:
        points = [*curve(other, name).values()]
        assert all(before.value >= after.value for before, after in pairwise(points))
        assert all(before.bound >= after.bound for before, after in pairwise(points))
        for point in points:
            schedule = point.timeline.schedule
            verify(schedule, measured(point.placement), point.memory)
            assert str(schedule.placement) == name
            assert point.value >= point.bound * (1 - 1e-9)
            assert point.value == time_of(point.timeline, other.objective)


def test_no_named_schedule_is_below_the_frontier(other):
    """A search at exactly its peak is no worse; nor is the next limit of the grid."""
    assert {timeline.schedule.name for timeline in other.named} == {*PLAIN} - {AUTO}
    for timeline in other.named:
        place, peak = timeline.schedule.placement, timeline.peak_memory
        value = time_of(timeline, other.objective) * (1 + 1e-9)
        exactly = search(measured(place), 3, 6, peak, place, other.objective, "quick")
        assert exactly.value <= value
        above = [each for memory, each in curve(other, str(place)).items() if memory >= peak]
        assert above
        assert all(point.value <= value for point in above)


def test_the_best_points_are_below_all_others(other):
    kept = other.pareto()
    places = [(each.timeline.peak_memory, each.value) for each in kept]
    assert all(a < c and b > d for (a, b), (c, d) in pairwise(places))
    for point in other.points:
        peak = point.timeline.peak_memory * (1 + 1e-9)
        assert min(value for memory, value in places if memory <= peak) <= point.value * (1 + 1e-9)
    for memory in other.limits:
        values = [point.value for point in other.at(memory).values()]
        best = [point.value for point in other.at(memory).values() if other.is_best(point)]
        assert best
        assert best == pytest.approx([min(values)] * len(best))


@pytest.mark.parametrize(
    ("p", "m", "expected"),
    [
        (1, 3, [1, 2]),
        (3, 4, [1, 1.5, 2, 3, 4]),
        (4, 2, [1, 2]),
        (16, 20, [1, 3, 5, 7, 8, 9, 11, 13, 15, 16, 17, 19, 20]),
    ],
)
def test_the_grid_of_other_sizes(p, m, expected, monkeypatch):
    monkeypatch.setattr(sweep, "_sweep", keep_limits := Limits())
    frontier(Costs.uniform(p), p, m)
    assert keep_limits.found == expected


class Limits:
    """Takes the place of the searches, and notes the limits that they are asked for."""

    def __call__(self, costs, placement, num_microbatches, limits, *others):
        self.found = limits
        return []


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ((0, 3), [1, 2, 3]),
        ((2.5, 3.5), [2.5, 3, 3.5]),
        ((2, 2), [2]),
        ((3, 100), [3, 4, 5, 6, 7, 8, 9]),
        ((0, np.inf), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_a_range_of_memory_is_kept_with_its_ends(memory, expected, monkeypatch):
    monkeypatch.setattr(sweep, "_sweep", keep_limits := Limits())
    frontier(Costs.uniform(4), 4, 9, memory)
    assert keep_limits.found == expected


def test_limits_are_in_the_unit_of_the_activations():
    """A V joins other stages on a rank than two rounds do, so it begins at another limit."""
    sizes = [2, 4, 4, 4, 4, 4, 4, 8]
    costs = Costs(*([1] * 8 for _ in range(3)), [0] * 8, sizes, sizes)
    found = frontier(costs, 4, 3)
    assert [*curve(found, "v")] == [10, 12, 24, 36]
    assert [*curve(found, "looped:2")] == [12, 24, 36]
    assert [*found.at(10)] == [wave(4, 2)]


def test_costs_of_stages_allow_the_placements_of_so_many_stages():
    of_twelve = frontier(Costs.uniform(12), 4, 2)
    assert of_twelve.placements == [wave(4, 3), looped(4, 3)]
    names = {timeline.schedule.name.removesuffix(":v=3") for timeline in of_twelve.named}
    assert names == {"breadth-first", "gis", "gis-h", "grouped-interleaved"}
    assert of_twelve.left_out["zb-v"] == "its placement v is not searched"
    needs = "interleaved needs a multiple of 4 microbatches, not 2"
    assert of_twelve.left_out["interleaved"] == needs
    assert frontier(Costs.uniform(4), 4, 2).placements == [linear(4)]


def test_a_limit_whose_bound_is_met_is_not_searched(monkeypatch):
    asked = []

    def spy(costs, ranks, m, memory, *others):
        asked.append(memory)
        return search(costs, ranks, m, memory, *others)

    monkeypatch.setattr(sys.modules["zerobubble.search"], "search", spy)
    found = frontier(Costs.uniform(4), 4, 8)
    assert found.limits == [1, 2, 3, 4, 5, 6, 7, 8]
    assert asked == [1, 2, 3, 5, 6], "zb-h1 and zb-h2 are optimal at 4 and at 7 and 8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_ranks": 0}, "ranks must be at least 1, not 0"),
        ({"num_microbatches": 0}, "microbatches must be at least 1, not 0"),
        ({"memory": (0, 0.5)}, "no schedule fits into memory 0.5: one microbatch on all stages "),
        ({"memory": (3, 2)}, "memory from 3 to 2 is no range"),
        ({"memory": (-1, 2)}, "memory from -1 to 2 is no range"),
        ({"memory": (np.nan, 2)}, "memory from nan to 2 is no range"),
        ({"memory": (1, np.nan)}, "memory from 1 to nan is no range"),
        ({"memory": 3}, "memory must be a smallest and a largest limit, not 3"),
        ({"memory": "ab"}, "memory must be a smallest and a largest limit, not 'ab'"),
        ({"memory": (1, 2, 3)}, "memory must be a smallest and a largest limit, not (1, 2, 3)"),
        ({"costs": Costs.uniform(6)}, "6 stages cannot be shared evenly by 4 ranks"),
        ({"costs": Costs.uniform(2)}, "2 stages cannot be shared evenly by 4 ranks"),
        ({"effort": "heroic"}, "effort must be one of quick, default, thorough"),
        ({"objective": "fun"}, "objective must be span or makespan"),
    ],
)
def test_what_cannot_be_searched_is_refused(changes, message):
    asked = {"costs": Costs.uniform(4), "num_ranks": 4, "num_microbatches": 8} | changes
    with pytest.raises(UsageError) as refusal:
        frontier(**asked)
    assert str(refusal.value).startswith(message)
