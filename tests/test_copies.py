"""Do O, L and R go where the memory they free counts and nothing waits for them?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_of_copies_for, schedules, schedules_with_copies
from zerobubble.copies import with_copies, with_recompute
from zerobubble.errors import ScheduleError
from zerobubble.ir import Kind
from zerobubble.simulate import simulate
from zerobubble.verify import verify


def _flags(draw, schedule, share):
    shape = (schedule.num_stages, schedule.num_microbatches)
    random = draw(st.randoms(use_true_random=False))
    return np.array([[random.random() < share for _ in range(shape[1])] for _ in range(shape[0])])


def _without_copies(schedule):
    num_pairs = schedule.num_stages * schedule.num_microbatches
    is_copy = [np.isin(order // num_pairs, (Kind.O, Kind.L)) for order in schedule.orders]
    return [order[~its].tolist() for order, its in zip(schedule.orders, is_copy, strict=True)]


@given(schedules_with_copies())
def test_random_copies_are_valid(schedule):
    verify(schedule)


@given(st.data())
def test_any_order_gets_valid_copies_and_keeps_its_compute(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_of_copies_for(schedule.num_stages))
    moved, again = (_flags(data.draw, schedule, share) for share in (0.7, 0.3))
    again_too = with_recompute(schedule, again & ~moved)
    copied = with_copies(again_too, costs, moved)
    verify(copied, costs)
    assert not (copied.has(Kind.O) & ~moved).any()
    assert _without_copies(copied) == [order.tolist() for order in again_too.orders]


@given(st.data())
def test_copies_never_delay_the_compute_and_never_add_memory(data):
    """Ranks that share no engine: as planned is as it runs."""
    schedule = data.draw(schedules())
    costs = replace(data.draw(costs_of_copies_for(schedule.num_stages)), ranks_per_engine=1)
    before, after = simulate(schedule, costs), simulate(with_copies(schedule, costs), costs)
    assert after.span <= before.span
    assert after.makespan <= before.makespan
    for rank, peak in enumerate(after.peak_memory_per_rank):
        assert peak <= before.peak_memory_per_rank[rank]


@given(st.data())
def test_a_limit_is_kept_or_named(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_of_copies_for(schedule.num_stages))
    moved = _flags(data.draw, schedule, data.draw(st.sampled_from((0.5, 1.0))))
    limit = simulate(schedule, costs).peak_memory * data.draw(st.integers(0, 8)) / 8
    try:
        copied = with_copies(schedule, costs, moved, memory=limit)
    except ScheduleError as error:
        least = float(str(error).partition("allow ")[2].partition(",")[0])
        assert least > limit
        verify(with_copies(schedule, costs, moved, memory=least), costs, least)
        with pytest.raises(ScheduleError):
            with_copies(schedule, costs, moved, memory=least * 0.999)
    else:
        verify(copied, costs, limit)
