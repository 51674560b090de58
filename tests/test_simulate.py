"""Is the simulated timeline the earliest one that the rules of time and memory allow?"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, schedules
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import BW, B, F, Kind, Schedule, W, linear
from zerobubble.simulate import Timeline, simulate


@st.composite
def timelines(draw):
    schedule = draw(schedules())
    return simulate(schedule, draw(costs_for(schedule.num_stages)))


def inputs_of(schedule, op, all_ops):
    """Yield every op whose output an op needs, and the boundary that it crosses."""
    kind, stage, i = op
    if kind is Kind.F and stage > 0:
        yield F(stage - 1, i), stage - 1
    if kind in (Kind.B, Kind.BW):
        yield F(stage, i), None
        if stage < schedule.num_stages - 1:
            later = B(stage + 1, i)
            yield later if later in all_ops else BW(stage + 1, i), stage
    if kind is Kind.W:
        yield B(stage, i), None


def duration(costs, op):
    f, b, w = (x[op.stage] for x in (costs.forward, costs.backward_input, costs.backward_weight))
    return {Kind.F: f, Kind.B: b, Kind.W: w, Kind.BW: b + w}[op.kind]


def delay(timeline, boundary):
    """Say how long a tensor travels over a boundary: nothing within a rank."""
    holders = timeline.schedule.placement.stage_to_rank
    if boundary is None or holders[boundary] == holders[boundary + 1]:
        return 0.0
    return timeline.costs.transfer[boundary]


def reference_starts(timeline):
    """Push every start up until no dependency is broken: slow, and shares no code."""
    schedule, costs = timeline.schedule, timeline.costs
    orders = [list(schedule.ops(rank)) for rank in range(schedule.num_ranks)]
    starts = {op: 0.0 for ops in orders for op in ops}
    changed = True
    while changed:
        changed = False
        for ops in orders:
            for index, op in enumerate(ops):
                waits = [starts[op]]
                waits += [starts[o] + duration(costs, o) for o in ops[index - 1 : index] if index]
                for need, boundary in inputs_of(schedule, op, starts):
                    waits.append(starts[need] + duration(costs, need) + delay(timeline, boundary))
                changed |= max(waits) > starts[op]
                starts[op] = max(waits)
    return starts


@given(timelines())
def test_every_op_starts_as_early_as_in_the_reference(timeline):
    expected = reference_starts(timeline)
    for rank in range(timeline.schedule.num_ranks):
        for _, op, start, end in timeline.timed_ops(rank):
            assert start == expected[op]
            assert end == start + duration(timeline.costs, op)


@given(timelines())
def test_work_is_conserved_and_numbers_agree(timeline):
    schedule = timeline.schedule
    work = [
        sum(duration(timeline.costs, op) for op in schedule.ops(r))
        for r in range(schedule.num_ranks)
    ]
    assert timeline.work_per_rank == work
    for rank, (start, end) in enumerate(zip(timeline.start, timeline.end, strict=True)):
        assert (start[1:] >= end[:-1]).all()
        gaps = float((start[1:] - end[:-1]).sum())
        assert timeline.idle_per_rank[rank] == gaps
        assert timeline.span_per_rank[rank] == work[rank] + gaps
    assert timeline.span == max(timeline.span_per_rank) <= timeline.makespan
    assert timeline.makespan == max(float(end.max()) for end in timeline.end)
    if timeline.span:
        assert timeline.bubble == pytest.approx(1 - max(work) / timeline.span)
        assert timeline.bubble_makespan == pytest.approx(1 - max(work) / timeline.makespan)


@given(timelines())
def test_the_critical_path_is_tight(timeline):
    path = timeline.critical_path()
    assert path[0].start == 0
    assert path[-1].end == timeline.makespan
    for before, after in pairwise(path):
        gap = after.start - before.end
        if before.rank == after.rank:
            assert gap == 0
        else:
            inputs = dict(inputs_of(timeline.schedule, after.op, {op for _, op, *_ in path}))
            assert gap == delay(timeline, inputs[before.op])


@given(timelines())
def test_memory_returns_to_zero_and_peaks_at_its_maximum(timeline):
    for rank in range(timeline.schedule.num_ranks):
        times, memory = timeline.memory_curve(rank)
        assert (np.diff(times) >= 0).all()
        assert memory[-1] == pytest.approx(0)
        assert memory.min() >= -1e-9
        assert timeline.peak_memory_per_rank[rank] == memory.max()
    assert timeline.peak_memory == max(timeline.peak_memory_per_rank)


def test_an_example_by_hand():
    orders = [[F(0, 0), B(0, 0), W(0, 0)], [F(1, 0), BW(1, 0)]]
    costs = Costs.uniform(2, f=1, b=2, w=4, transfer=8, activation=16, kept=0.25)
    timeline = simulate(Schedule.from_ops("mine", linear(2), 1, orders), costs)
    assert timeline.start[0].tolist() == [0, 24, 26]
    assert timeline.start[1].tolist() == [9, 10]
    assert (timeline.span, timeline.makespan) == (30, 30)
    assert timeline.idle_per_rank == [23, 0]
    assert timeline.memory_curve(0)[0].tolist() == [0, 26, 30]
    assert timeline.memory_curve(0)[1].tolist() == [16, 4, 0]
    assert [op for _, op, *_ in timeline.critical_path()] == [
        F(0, 0),
        F(1, 0),
        BW(1, 0),
        B(0, 0),
        W(0, 0),
    ]


def test_a_measured_timeline_is_of_the_same_class():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), BW(0, 0)]])
    times = (np.array([1e9, 1e9 + 3]),), (np.array([1e9 + 2, 1e9 + 7]),)
    timeline = Timeline(schedule, Costs.uniform(1), *times)
    assert (timeline.span, timeline.makespan, timeline.bubble) == (7, 7, pytest.approx(1 / 7))


def test_costs_must_fit():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), BW(0, 0)]])
    with pytest.raises(UsageError, match="costs for 2 stages given, but mine has 1"):
        simulate(schedule, Costs.uniform(2))


def test_free_ops_take_no_time():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), B(0, 0), W(0, 0)]])
    timeline = simulate(schedule, Costs.uniform(1, f=0, b=0, w=0))
    assert (timeline.span, timeline.bubble, timeline.bubble_makespan) == (0, 0, 0)
