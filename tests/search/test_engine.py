"""Is what the search finds as good as proofs and publications allow, and never worse than known?"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import costs_for, placements
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement, linear, looped, wave
from zerobubble.schedules import REGISTRY, build
from zerobubble.search import lower_bound, search
from zerobubble.search.auto import AUTO
from zerobubble.search.limits import smallest_memory
from zerobubble.simulate import simulate
from zerobubble.verify import verify, violations

PAPER = json.loads((Path(__file__).parents[1] / "data" / "zero_bubble_paper.json").read_text())
ROWS = [row for row in PAPER["rows"] if row["table"] == "table5" and row["p"] == 8]


def per_rank(row, placement):
    return Costs.of_ranks(placement, *row["costs"], row["kept"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} m={row['m']}")
def test_at_the_memory_of_1f1b_the_published_bubble_is_proved_optimal(row):
    p, m = row["p"], row["m"]
    found = search(per_rank(row, linear(p)), p, m, memory=p, effort="quick")
    assert found.is_proved_optimal
    assert round(found.timeline.bubble, 4) == row["bubble"]["ZB-1p"]
    verify(found.schedule, found.timeline.costs, p)


@pytest.mark.parametrize("row", ROWS[-1:], ids=lambda row: f"{row['model']} m={row['m']}")
def test_at_twice_that_memory_it_is_better_than_published(row):
    p, m = row["p"], row["m"]
    found = search(per_rank(row, linear(p)), p, m, memory=2 * p, effort="quick")
    assert found.timeline.bubble <= row["bubble"]["ZB-2p"]
    assert found.gap < 0.0031


def test_v_at_equal_times_has_no_bubble_at_the_memory_of_1f1b():
    found = search(Costs.of_ranks(wave(4, 2)), 4, 8, memory=4, placement="v", effort="quick")
    assert found.timeline.span == pytest.approx(24)
    assert found.is_proved_optimal


@settings(max_examples=8)
@given(st.data())
def test_never_above_a_registered_schedule_that_fits_nor_below_the_bound(data):
    placement = data.draw(placements())
    costs, m = data.draw(costs_for(placement.num_stages)), data.draw(st.integers(1, 4))
    limits = smallest_memory(costs, placement) * data.draw(st.floats(1, 3))
    objective = data.draw(st.sampled_from(["span", "makespan"]))
    found = search(costs, placement.num_ranks, m, limits, placement, objective, "quick")
    verify(found.schedule, costs, limits)
    assert found.value >= found.bound * (1 - 1e-9)
    for recipe in (known for name, known in REGISTRY.items() if name != AUTO):
        try:
            known = recipe.build(placement.num_ranks, m, costs)
        except (ScheduleError, UsageError):
            continue
        if known.placement == placement and not violations(known, costs, limits):
            assert found.value <= getattr(simulate(known, costs), objective) * (1 + 1e-9)


@pytest.mark.timeout(600)
def test_four_stages_a_rank_beat_the_best_possible_v_below_the_memory_of_1f1b():
    """Where a model can be cut so finely, down-up-down-up is faster than V can be."""
    row = next(row for row in ROWS if row["model"] == "6.2B")
    p, m = row["p"], row["m"]
    found = search(per_rank(row, wave(p, 4)), p, m, 5, "wave:4")
    verify(found.schedule, found.timeline.costs, 5)
    best_v = lower_bound(per_rank(row, wave(p, 2)), wave(p, 2), m, 5, "span").value
    assert found.timeline.span < best_v
    assert found.gap < 0.01, "justification brings it close to what is possible at all"


def test_the_same_search_gives_the_same_schedule():
    costs = Costs.of_ranks(linear(4), 1.0, 1.3, 0.6, 0.1, 0.4)
    first, second = (search(costs, 4, 8, memory=3, effort="quick") for _ in range(2))
    assert first.schedule == second.schedule


def test_climbing_is_never_worse_than_not_climbing():
    costs = Costs.of_ranks(wave(2, 2), 1.0, 1.2, 0.7, 0.05, 0.4)
    quick = search(costs, 2, 4, 1.5, "v", effort="quick")
    assert search(costs, 2, 4, 1.5, "v", effort="default").value <= quick.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": 0.5}, "rank 0: no schedule fits into memory 0.5"),
        ({"memory": -1}, "memory limits must not be negative or nan"),
        ({"memory": np.nan}, "memory limits must not be negative or nan"),
        ({"memory": [4, 4, np.nan, 4]}, "memory limits must not be negative or nan"),
        ({"memory": [1, 2]}, "2 memory limits given for 4 ranks"),
        ({"memory": [4] * 5}, "5 memory limits given for 4 ranks"),
        (
            {"memory": [4, 4, 0.5, 4]},
            "rank 2: no schedule fits into memory 0.5: when F0 of stage 2 runs, the rank holds one "
            "activation of stage 2, together 1: allow at least 1 on rank 2",
        ),
        (
            {"memory": 1.5, "num_ranks": 2, "placement": "v"},
            "rank 0: no schedule fits into memory 1.5: when F0 of stage 3 runs, the rank holds one "
            "activation of stages 0, 3, together 2: allow at least 2 on rank 0",
        ),
        ({"memory": "a"}, "memory must be a number, or one for each rank: 'a'"),
        ({"num_ranks": "4"}, "ranks must be a whole number, not '4'"),
        ({"num_ranks": 5000}, "5000 ranks are too many for a search: at most 4096"),
        ({"num_microbatches": 2.5}, "microbatches must be a whole number, not 2.5"),
        ({"num_microbatches": 10**30}, "4" + 30 * "0" + " ops a kind are too many"),
        ({"placement": 5}, "placement must be a name or the rank of each stage, not 5"),
        ({"costs": None}, "costs must be Costs, or a function that gives them, not None"),
        ({"costs": lambda _: None}, "the costs for placement linear must be Costs, not None"),
        (
            {"costs": lambda _: Costs.uniform(3)},
            "costs for 3 stages given, but placement linear has 4",
        ),
        ({"num_microbatches": 0}, "microbatches must be at least 1, not 0"),
        ({"num_microbatches": -1}, "microbatches must be at least 1, not -1"),
        ({"num_ranks": 0}, "ranks must be at least 1, not 0"),
        ({"num_ranks": -1, "placement": "v"}, "ranks must be at least 1, not -1"),
        ({"num_ranks": 3, "placement": linear(4)}, "placement linear has 4 ranks, not 3"),
        ({"num_ranks": 3}, "4 stages cannot be shared evenly by 3 ranks"),
        ({"placement": "v"}, "costs for 4 stages given, but placement v has 8"),
        ({"placement": "spiral"}, "placement 'spiral' is not known for 4 ranks"),
        ({"effort": "heroic"}, "effort must be one of quick, default, thorough"),
        ({"objective": "fun"}, "objective must be span or makespan"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(changes, message):
    asked = {"costs": Costs.uniform(4), "num_ranks": 4, "num_microbatches": 4} | changes
    with pytest.raises(UsageError) as refusal:
        search(**asked)
    assert str(refusal.value).startswith(message)


def test_quick_effort_keeps_named_schedules_that_do_not_fit_into_a_small_copy():
    """A quarter of the memory of V-Half on 32 ranks is less than V-Half needs on 8."""
    costs, memory = Costs.of_ranks(wave(32, 2)), 17
    found = search(costs, 32, 64, memory, "v", effort="quick")
    assert found.timeline.span <= simulate(build("v-half", 32, 64, costs), costs).span + 1e-9
    assert found.is_proved_optimal


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_the_unit_of_time_does_not_matter(unit):
    """Neither for the schedule nor for the certificate."""
    placement = wave(2, 4)
    draws = np.random.default_rng(3).uniform(1, 3, (4, 8))
    costs, scaled = (
        Costs(*(draws * factor), np.ones(8), np.full(8, 0.5)) for factor in (1.0, unit)
    )
    found = [search(each, 2, 5, 5.0, placement, effort="default") for each in (costs, scaled)]
    assert found[0].schedule == found[1].schedule
    assert found[1].value == pytest.approx(unit * found[0].value, rel=1e-9)
    assert found[1].bound == pytest.approx(unit * found[0].bound, rel=1e-9)


def test_the_smallest_limit_of_any_rank_and_placement_is_named():
    ones = np.ones(8)
    activation = np.array([9.0, 1, 1, 1, 1, 1, 1, 9])
    costs = Costs(ones, ones, ones, 0 * ones, activation, 0 * ones)
    with pytest.raises(UsageError, match=r"looped:2: .* allow at least 10 on rank 0"):
        search(costs, 4, 8, 5)
    assert search(costs, 4, 8, 10, effort="quick").schedule.placement == looped(4, 2)


def test_a_placement_may_be_a_list():
    found = search(Costs.uniform(3), 2, 3, placement=[0, 1, 1], effort="quick")
    assert found.schedule.placement == Placement((0, 1, 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("holders", [(0, 1, 2, 1), (0, 1, 1, 0)])
def test_ops_that_take_no_time_leave_the_transfers(holders):
    place = Placement(holders)
    costs = Costs.uniform(4, f=0, b=0, w=0, transfer=1)
    num_hops = sum(a != b for a, b in pairwise(holders))
    found = search(costs, place.num_ranks, 1, 2, place, effort="quick")
    assert found.timeline.span == found.bound == 2 * num_hops
    assert search(costs, place.num_ranks, 5, 2, place, effort="quick").value >= 2 * num_hops
