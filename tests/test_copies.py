"""Do O, L and R go where the memory they free counts and nothing waits for them?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_of_copies_for, schedules, schedules_with_copies
from zerobubble.copies import (
    copy_to_compute_ratio,
    offload_to_compute_ratio,
    with_copies,
    with_recompute,
)
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import BW, F, Kind, Schedule, looped
from zerobubble.schedules import build
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


def _words(schedule):
    """Write the order of rank 0, stage 1 in lower case."""
    names = (f"{op.kind.name}{op.microbatch}" for op in schedule.ops(0))
    words = zip(names, schedule.ops(0), strict=True)
    return " ".join(name.lower() if op.stage else name for name, op in words)


# F takes 1 and BW 2: F0 ends at 1, f0 at 3, bw0 begins at 4, BW0 at 8.
TWO_ROUNDS = Schedule.from_ops(
    "mine",
    looped(1, 2),
    2,
    [[*(F(s, i) for s in (0, 1) for i in (0, 1)), *(BW(s, i) for s in (1, 0) for i in (0, 1))]],
)


def _slow(one_way):
    return replace(Costs.uniform(2), offload=[one_way] * 2, load=[one_way] * 2)


@pytest.mark.parametrize(
    ("one_way", "expected"),
    [
        (0, "F0 O0 F1 O1 f0 o0 f1 o1 l0 bw0 l1 bw1 L0 BW0 L1 BW1"),
        # f1 could leave from 4 to 5 and come back from 5 to 6, but bw0 runs all that time.
        (1, "F0 F1 O0 f0 O1 f1 bw0 L0 bw1 L1 BW0 BW1"),
        # F1 leaves behind F0, until 5; the copies back run from 6 to 8 and from 8 to 10.
        (2, "F0 F1 f0 O0 f1 bw0 O1 L0 bw1 L1 BW0 BW1"),
        (4, "F0 F1 f0 f1 bw0 bw1 BW0 BW1"),
    ],
)
def test_copies_stand_where_the_times_say(one_way, expected):
    assert _words(with_copies(TWO_ROUNDS, _slow(one_way))) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (3, "F0 F1 f0 O0 f1 bw0 O1 L0 bw1 L1 BW0 BW1"),
        (2, "F0 F1 O0 f0 O1 f1 bw0 L0 bw1 L1 BW0 BW1"),
        (1, "F0 O0 F1 O1 f0 o0 f1 o1 l0 bw0 l1 bw1 L0 BW0 L1 BW1"),
    ],
)
def test_a_limit_pulls_offloads_forward(memory, expected):
    assert _words(with_copies(TWO_ROUNDS, _slow(2), memory=memory)) == expected


def test_a_limit_that_cannot_be_kept_names_the_least():
    message = (
        "mine: rank 0: F0 of stage 0 raises activation memory to 1 even with all offloaded that "
        "may be, over the limit of 0.5: allow 1, the least that this order can be brought to"
    )
    with pytest.raises(ScheduleError, match=message):
        with_copies(TWO_ROUNDS, _slow(2), memory=0.5)
    with pytest.raises(ScheduleError, match=r"F1 of stage 1 .*: allow 4, the least"):
        with_copies(TWO_ROUNDS, _slow(2), np.array([False, False]), memory=1)


def test_recompute_stands_right_before_the_backward():
    again = np.array([[False, True], [True, False]])
    assert _words(with_recompute(TWO_ROUNDS, again)) == "F0 F1 f0 f1 r0 bw0 bw1 BW0 R1 BW1"
    every = with_recompute(TWO_ROUNDS, np.array([True, False]))
    assert _words(every) == "F0 F1 f0 f1 bw0 bw1 R0 BW0 R1 BW1"


@pytest.mark.parametrize(
    "call",
    [
        lambda copied, again: with_copies(copied, _slow(0)),
        lambda copied, again: with_copies(again, _slow(0), np.array([True, True])),
        lambda copied, again: with_recompute(copied, np.array([True, True])),
        lambda copied, again: with_recompute(again, np.array([True, True])),
    ],
)
def test_nothing_gets_two_ways_back(call):
    copied = with_copies(TWO_ROUNDS, _slow(0))
    again = with_recompute(TWO_ROUNDS, np.array([True, True]))
    with pytest.raises(ScheduleError, match="microbatch 0 of stage 0 is offloaded or run again"):
        call(copied, again)


@pytest.mark.parametrize("flags", [[True], [[True, True]], [1, 0], "yes"])
def test_flags_of_another_shape_are_refused(flags):
    with pytest.raises(UsageError, match="must be true or false for each of 2 stages, or of 2 x 2"):
        with_recompute(TWO_ROUNDS, np.array(flags))


def test_ranks_that_share_an_engine_are_not_delayed_more_than_a_copy():
    schedule = build("gis:v=4", 4, 16)
    costs = Costs.of_ranks(schedule.placement)
    costs = replace(costs, offload=costs.forward, load=costs.forward, ranks_per_engine=2)
    copied = with_copies(schedule, costs)
    assert copied.has(Kind.O).mean() > 0.5
    before, after = simulate(schedule, costs), simulate(copied, costs)
    assert after.peak_memory < before.peak_memory
    assert after.span <= before.span * (1 + 1e-9)


# A layer in 16 bits on an A100: 220 TFLOP/s, 15 GB/s each way (figure 2 of the paper).
GRID = {
    4096: (1.7, 1.46, 1.15, 0.8),
    5120: (1.4, 1.23, 1.0, 0.72),
    6144: (1.19, 1.07, 0.88, 0.66),
    7168: (1.03, 0.94, 0.8, 0.61),
    8192: (0.92, 0.84, 0.72, 0.56),
    10240: (0.74, 0.69, 0.61, 0.49),
}


@pytest.mark.parametrize("hidden_size", GRID)
def test_the_ratio_of_copies_to_compute_is_the_published_one(hidden_size):
    for sequence_length, printed in zip((4096, 8192, 16384, 32768), GRID[hidden_size], strict=True):
        k = offload_to_compute_ratio(hidden_size, sequence_length, 220e12, 15e9)
        formula = 10 / (3 * (6 * hidden_size + sequence_length)) * 220e12 / 15e9
        assert k == pytest.approx(formula)
        assert k == pytest.approx(printed, rel=0.08)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "a"])
def test_a_ratio_needs_positive_numbers(wrong):
    for place in range(4):
        values = [4096, 4096, 220e12, 15e9]
        values[place] = wrong
        with pytest.raises(UsageError, match="must be positive"):
            offload_to_compute_ratio(*values)


def test_copies_back_that_start_together_go_in_the_order_of_the_backwards():
    """That of stage 1 takes no time, and BW of stage 1 begins at 2; that of stage 0 ends at 4."""
    order = [*(F(s, 0) for s in range(4)), *(BW(s, 0) for s in (3, 2, 1, 0))]
    schedule = Schedule.from_ops("mine", looped(1, 4), 1, [order])
    forward, backward, size, none = [0, 0, 0, 2], [0, 2, 0, 0], [1, 2, 1, 1], [0] * 4
    costs = Costs(forward, backward, none, none, size, size, load=[4, 0, 0, 0])
    copied = with_copies(schedule, costs)
    assert copied.has(Kind.L).reshape(-1).tolist()[:2] == [True, True]
    assert simulate(copied, costs).span == 4


def test_k_is_of_the_worst_stage_and_infinite_without_compute():
    costs = Costs.uniform(2, f=1, b=1, w=2)
    slow = replace(costs, offload=np.array([1, 2]), load=np.array([1, 1]))
    assert copy_to_compute_ratio(slow) == 0.75
    nothing = np.zeros(2)
    idle = replace(slow, forward=nothing, backward_input=nothing, backward_weight=nothing)
    assert copy_to_compute_ratio(idle) == np.inf
    assert copy_to_compute_ratio(replace(idle, offload=nothing, load=nothing)) == 0
