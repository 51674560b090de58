"""Does a repeating block become a schedule that keeps its memory and drops its waits?"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobubble import from_building_block
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Kind, Op, Placement, linear, v_shape, wave
from zerobubble.schedules import build
from zerobubble.schedules.timetable import Timetable
from zerobubble.simulate import simulate
from zerobubble.verify import verify


def bubble_and_memory(schedule):
    timeline = simulate(schedule, Costs.uniform(schedule.num_stages))
    return timeline.bubble, timeline.peak_memory


@pytest.mark.parametrize("p", range(1, 10))
def test_v_zb_is_a_block(p):
    """Five slots a hop down and one up leave no bubble in twice p stage activations."""
    down, up = range(0, 5 * p, 5), range(5 * p - 4, 6 * p - 4)
    deep, last = range(11 * p - 9, 6 * p - 9, -5), range(12 * p - 9, 11 * p - 9, -1)
    for m in (2 * p, 3 * p):
        block = {"forward": [*down, *up], "backward": [*last, *deep]}
        schedule = from_building_block(v_shape(p), m, **block)
        verify(schedule)
        assert bubble_and_memory(schedule) == (0, 2 * p)


def test_a_block_may_say_where_w_runs():
    """ZB-H1 is such a block: the slots of W decide which W waits."""
    blocks = {"forward": [0, 1, 2], "backward": [7, 5, 3], "weight": [8, 9, 10]}
    schedule = from_building_block(linear(3), 6, **blocks, name="mine")
    assert schedule == build("zb-h1", 3, 6).renamed("mine")
    late = from_building_block(linear(1), 2, forward=[0], backward=[1], weight=[5])
    assert [str(op)[:2] for op in late.ops(0)] == ["F0", "B0", "F1", "B1", "W0", "W1"]


def test_a_longer_period_only_leaves_more_waits_to_drop():
    block = {"forward": [0, 1], "backward": [4, 2]}
    short, long = (from_building_block(linear(2), 5, **block, period=n) for n in (3, 9))
    assert bubble_and_memory(long)[1] <= bubble_and_memory(short)[1]
    verify(long)


@st.composite
def blocks(draw):
    """Draw a placement and start slots that fit: each op takes a free slot after its input."""
    num_ranks = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, num_ranks - 1), max_size=5))
    placement = Placement(tuple(draw(st.permutations([*range(num_ranks), *extra]))))
    period = 3 * max(len(placement.stages_of(rank)) for rank in range(num_ranks))
    taken, starts, slot = set(), {Kind.F: [], Kind.B: []}, 0
    stages = range(placement.num_stages)
    for kind, stage in [(Kind.F, s) for s in stages] + [(Kind.B, s) for s in reversed(stages)]:
        slot += draw(st.integers(0, 7))
        while (placement.stage_to_rank[stage], slot % period) in taken:
            slot += 1
        taken.add((placement.stage_to_rank[stage], slot % period))
        starts[kind].append(slot)
        slot += 1
    return placement, starts[Kind.F], starts[Kind.B][::-1]


@given(blocks(), st.integers(1, 12))
def test_any_block_keeps_its_memory(block, m):
    placement, forward, backward = block
    schedule = from_building_block(placement, m, forward=forward, backward=backward)
    verify(schedule)
    period = 3 * max(len(placement.stages_of(rank)) for rank in range(placement.num_ranks))
    slots = {
        Op(kind, stage, i): start + i * period
        for kind, starts in ((Kind.F, forward), (Kind.B, backward))
        for stage, start in enumerate(starts)
        for i in range(m)
    }
    repeated = Timetable("repeated", placement, m, slots)
    assert bubble_and_memory(schedule)[1] <= max(
        repeated.memory(rank).max() for rank in range(placement.num_ranks)
    )
    unchanged = simulate(repeated.schedule(), Costs.uniform(placement.num_stages))
    assert simulate(schedule, unchanged.costs).makespan <= unchanged.makespan


GOOD = {"forward": [0, 1, 2, 3], "backward": [7, 6, 5, 4]}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"forward": [0, 1]}, UsageError, "2 slots of F for 4 stages"),
        ({"forward": [-1, 1, 2, 3]}, UsageError, "slots are counted from 0, not -1"),
        ({"weight": [8] * 4, "fused": True}, UsageError, "a fused backward has no slots for W"),
        ({"num_microbatches": 0}, UsageError, "microbatches must be at least 1, not 0"),
        ({"period": 5}, ScheduleError, "rank 0 needs 6 slots for each microbatch, but the period"),
        (
            {"backward": [9, 6, 5, 4]},
            ScheduleError,
            "rank 0 has F of stage 3 and B of stage 0 in slot 3 of the period: move one of them",
        ),
        (
            {"forward": [0, 2, 2, 3]},
            ScheduleError,
            "F of stage 2 starts in slot 2, before F of stage 1 ends: start it in slot 3 or later",
        ),
        (
            {"backward": [7, 6, 5, 3]},
            ScheduleError,
            "B of stage 3 starts in slot 3, before F of stage 3 ends: start it in slot 4 or later",
        ),
        (
            {"weight": [7, 9, 10, 11]},
            ScheduleError,
            "W of stage 0 starts in slot 7, before B of stage 0 ends: start it in slot 8 or later",
        ),
    ],
)
def test_a_wrong_block_is_told(change, error, message):
    arguments = {"placement": wave(2, 2), "num_microbatches": 3, **GOOD, **change}
    with pytest.raises(error, match=re.escape(f"building-block: {message}")):
        from_building_block(**arguments)
