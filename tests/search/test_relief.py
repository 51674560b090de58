"""Does a search meet memory limits by offload and recompute, and do the bounds hold then?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import costs_of_copies_for, placements, schedules_with_copies
from zerobubble import jit
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import B, F, Kind, Schedule, W, linear, looped, wave
from zerobubble.search import lower_bound, search
from zerobubble.search.known import known_schedules
from zerobubble.search.relief import Decision, Relief, smallest_relieved_memory
from zerobubble.search.relief.bounds import host_room, relieved_bound
from zerobubble.search.relief.making_room import make_room
from zerobubble.simulate import simulate
from zerobubble.verify import verify

OBJECTIVES = ("span", "makespan")


def per_rank(k, transfer=0.02):
    """Costs with copies there and back that take k times as long as F, B and W."""
    return lambda place: Costs.of_ranks(place, 1, 1, 1, transfer).with_bandwidth(2 / (3 * k))


def check(found, memory):
    """A result is valid, keeps its limit, is simulated as it says and no better than its bound."""
    costs = found.timeline.costs
    verify(found.schedule, costs, memory)
    assert simulate(found.schedule, costs).span == pytest.approx(found.timeline.span)
    assert found.bound <= found.value * (1 + 1e-9)


@settings(max_examples=100)
@given(st.data())
def test_no_random_schedule_with_copies_beats_a_bound(data):
    schedule = data.draw(schedules_with_copies())
    costs = data.draw(costs_of_copies_for(schedule.num_stages))
    timeline = simulate(schedule, costs)
    limits = np.array(timeline.peak_memory_per_rank)
    relief = Relief("auto" if schedule.has(Kind.O).any() else "off", "auto")
    problem = (costs, schedule.placement, schedule.num_microbatches, limits)
    for objective in OBJECTIVES:
        time = getattr(timeline, objective)
        bound = relieved_bound(*problem, objective, relief, time)
        assert bound.value <= time * (1 + 1e-9), bound


def test_the_bound_counts_what_the_host_can_hold_in_time():
    """What goes out and comes back takes 4 each; 1 before and 2 behind are F, and B and W."""
    costs = Costs.uniform(4).with_bandwidth(0.5)
    assert host_room(costs, linear(4), 15).tolist() == [3] * 4
    problem = costs, linear(4), 8
    bound = relieved_bound(*problem, np.ones(4), "span", Relief("auto"), 15)
    assert bound.value == lower_bound(*problem, 4).value < lower_bound(*problem, 1).value
    ample = relieved_bound(*problem, np.ones(4), "span", Relief("auto"), 1000)
    assert ample.value == lower_bound(*problem).value, "the host holds all"


def test_what_can_never_leave_counts_however_fast_the_copies():
    costs = replace(Costs.uniform(4), activation_offloaded=np.full(4, 0.5))
    bound = relieved_bound(costs, linear(4), 8, np.ones(4), "span", Relief("auto"))
    half = Costs.uniform(4, activation=0.5)
    assert bound.value == lower_bound(half, linear(4), 8, 1).value > 8 * 3


def test_running_everything_again_is_work():
    bound = relieved_bound(
        Costs.uniform(2), linear(2), 8, np.ones(2), "span", Relief("off", "full")
    )
    assert (bound.value, bound.name) == (8 * 4, "load")


@given(placements(), st.integers(1, 3), st.data())
@settings(max_examples=10, deadline=None)
def test_a_schedule_fits_into_the_smallest_memory_and_no_less(placement, m, data):
    costs = data.draw(costs_of_copies_for(placement.num_stages))
    offload, recompute = data.draw(
        st.sampled_from((("all", "off"), ("off", "full"), ("auto",) * 2))
    )
    relief = Relief(offload, recompute)
    needed = smallest_relieved_memory(costs, placement, relief.rest(costs))
    asked = (costs, placement.num_ranks, m)
    words = {"offload": offload, "recompute": recompute, "effort": "quick"}
    check(search(*asked, needed, placement, **words), needed)
    if needed.max() > 0:
        with pytest.raises(UsageError, match=f"allow at least {needed.max():g} on rank"):
            search(*asked, needed * 0.99, placement, **words)


@given(placements(), st.integers(1, 4), st.data())
@settings(max_examples=6, deadline=None)
def test_never_worse_than_the_search_without(placement, m, data):
    costs = data.draw(costs_of_copies_for(placement.num_stages))
    least = np.bincount(placement.stage_to_rank, weights=costs.activation)
    limits = least * data.draw(st.floats(1, 3))
    objective = data.draw(st.sampled_from(OBJECTIVES))
    asked = (costs, placement.num_ranks, m, limits, placement, objective, "quick")
    plain = search(*asked)
    for words in (("auto", "off"), ("off", "auto"), ("auto", "auto")):
        found = search(*asked, *words)
        check(found, limits)
        assert found.value <= plain.value


@pytest.mark.parametrize("words", [{"offload": "auto"}, {"recompute": "auto"}])
def test_what_takes_longer_than_it_saves_is_left_alone(words):
    """Copies as long as the step, or a third more work, are not worth a quarter of the memory."""
    asked = (per_rank(k=20, transfer=0), 4, 8, 3, "linear", "span", "quick")
    plain, found = search(*asked), search(*asked, **words)
    check(found, 3)
    assert found.value == plain.value == 32
    assert found.offloaded_stages == found.recomputed_stages == []


@pytest.mark.parametrize("placement", ["looped:4", "looped:8"])
def test_a_quarter_of_the_memory_costs_at_most_three_points_of_bubble(placement):
    p, costs = 8, per_rank(k=1)
    full = search(costs, p, 4 * p, p, placement, effort="quick")
    found = search(costs, p, 4 * p, p / 4, placement, effort="quick", offload="auto")
    check(found, p / 4)
    assert found.timeline.bubble <= full.timeline.bubble + 0.03


@pytest.mark.parametrize("p", [3, 5])
@pytest.mark.parametrize("placement", ["linear", "looped:2", "wave:4"])
def test_where_the_paper_gives_up_there_are_schedules(p, placement):
    """Odd p, all stages, and a transfer each way as long as the compute of the stage."""
    found = search(per_rank(k=2), p, 2 * p, 1, placement, effort="quick", offload="all")
    check(found, 1)
    assert found.offloaded_stages


def test_recompute_where_nothing_else_fits():
    """Half a microbatch of memory: stages hold nothing but are run again, one third more work."""
    found = search(per_rank(k=1), 4, 8, 0.5, "v", effort="quick", recompute="full")
    check(found, 0.5)
    assert found.recomputed_stages == list(range(8))
    assert found.timeline.work_per_rank == pytest.approx([8 * 4] * 4)


def test_offload_and_recompute_of_different_stages():
    costs = Costs.uniform(2, f=1, b=1, w=1, activation=1).with_bandwidth(0.5)
    costs = replace(costs, activation_offloaded=[1.0, 0.0], recompute=[9.0, 0.5])
    found = search(costs, 1, 4, 1, wave(1, 2), offload="auto", recompute="auto", effort="quick")
    check(found, 1)
    assert set(found.offloaded_stages) <= {0}


def test_light_recompute_is_chosen_where_memory_is_short():
    place = wave(4, 2)
    costs = replace(
        Costs.of_ranks(place), activation_light=np.full(8, 0.25), recompute_light=np.full(8, 0.01)
    )
    tight, ample = (
        search(costs, 4, 8, memory, place, effort="quick", recompute="auto") for memory in (1.5, 9)
    )
    assert tight.is_light
    assert tight.timeline.costs.activation.tolist() == [0.25] * 8
    assert not ample.is_light
    asked = search(costs, 4, 8, 9, place, effort="quick", recompute="light")
    assert asked.is_light
    assert asked.timeline.work_per_rank == pytest.approx([8 * 3.02] * 4)


def test_the_same_with_numba_and_without(monkeypatch):
    asked = (per_rank(k=1), 3, 9, 1.5, "looped:2")
    words = {"offload": "auto", "recompute": "auto", "effort": "quick"}
    compiled, again = search(*asked, **words), search(*asked, **words)
    monkeypatch.setattr(jit, "SMALLEST_COMPILED_WORK", np.inf)
    assert compiled.schedule == again.schedule == search(*asked, **words).schedule


def test_a_plain_search_offers_no_schedule_that_moves_activations():
    assert "po-h" in known_schedules(looped(4, 2), may_move=True)
    assert "po-h" not in known_schedules(looped(4, 2))
    assert "gis-h" in known_schedules(looped(4, 2))


def test_weights_make_room_for_the_copies_of_later_ops():
    ops = [F(0, 0), F(0, 1), B(0, 0), B(0, 1), F(0, 2), B(0, 2), W(0, 0), W(0, 1), W(0, 2)]
    schedule = Schedule.from_ops("late", linear(1), 3, [ops])
    costs, moved = Costs.uniform(1), Decision(np.array([True]), np.array([False]))
    made = make_room(schedule, costs, moved, np.array([2.0]), np.zeros(1))
    assert [str(op).split()[0] for op in made.ops(0)] == "F0 F1 B0 B1 W0 F2 B2 W1 W2".split()
    alone = make_room(schedule, costs, moved, np.array([1.0]), np.zeros(1))
    assert [str(op).split()[0] for op in alone.ops(0)] == "F0 F1 B0 W0 B1 W1 F2 B2 W2".split()
    assert make_room(schedule, costs, moved, np.array([0.5]), np.zeros(1)) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"offload": "some"}, "offload must be one of off, auto, all, not 'some'"),
        ({"recompute": "all"}, "recompute must be one of off, auto, light, full, not 'all'"),
        ({"offload": "all", "recompute": "full"}, "exclude each other"),
        ({"recompute": "light"}, "do not say what it saves: give activation_light"),
    ],
)
def test_words_that_mean_nothing(words, message):
    with pytest.raises(UsageError, match=message):
        search(Costs.uniform(4), 4, 4, **words)
