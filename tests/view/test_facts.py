"""Is every moment of a timeline explained, once, and are slack and critical path what they say?"""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, costs_of_copies_for, schedules, schedules_with_copies
from tests.view.pretended import delayed
from zerobubble.costs import Costs
from zerobubble.ir import BW, B, F, Kind, L, O, R, Schedule, W, linear
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.view.explain import explain
from zerobubble.view.facts import INPUT, LOAD, NOTHING, ORDER, Facts


@st.composite
def timelines(draw):
    if draw(st.booleans()):
        schedule = draw(schedules_with_copies())
        costs = draw(costs_of_copies_for(schedule.num_stages))
    else:
        schedule = draw(schedules())
        costs = draw(costs_for(schedule.num_stages))
    return simulate(schedule, costs)


def facts_of(name="zb-h1", p=4, m=8, transfer=0.25, limits=None):
    schedule = build(name, p, m)
    costs = Costs.of_ranks(schedule.placement, 1, 1, 1, transfer)
    return Facts(simulate(schedule, costs), None if limits is None else np.full(p, limits))


def place(facts, op):
    return int(facts.index_of[facts.timeline.schedule.code(op)])


def test_what_ops_waited_for():
    facts = facts_of()
    first, input_, order = (place(facts, op) for op in (F(0, 0), F(1, 0), F(1, 1)))
    assert [facts.waited_for[i] for i in (first, input_, order)] == [NOTHING, INPUT, NOTHING]
    assert facts.wait_for_input[input_] == 1.25
    late = place(facts, W(3, 0))
    assert (facts.waited_for[late], facts.wait_for_rank[late]) == (ORDER, 7)
    assert (facts.start[late], facts.end[place(facts, B(3, 0))]) == (12.75, 5.75)


def test_memory_before_and_after():
    facts = facts_of()
    i = place(facts, B(0, 0))
    assert (facts.memory_before[i], facts.memory_after[i]) == (4, 4)
    i = place(facts, W(0, 0))
    assert (facts.memory_before[i], facts.memory_after[i]) == (4, 3)
    peak = facts.peak_op(1)
    assert (peak.op, peak.memory, peak.start) == (F(1, 3), 4, 8.25)


def test_causes_by_hand():
    """Rank 0 waits from 2 to 4 and from 6 to 7; rank 1 runs from 1 to 7, rank 0 ends at 9."""
    assert facts_of("1f1b", 2, 2, transfer=0).idle_by_cause() == [
        {"waits for BW of stage 1 on rank 1": 3},
        {"drain": 2, "warm-up": 1},
    ]


def test_the_limit_is_named_only_where_a_forward_did_not_fit():
    unlimited, limited = facts_of(), facts_of(limits=4.0)
    held = "memory limit"
    waits = "waits for B of stage 1 on rank 1"
    assert unlimited.idle_by_cause()[0] == {waits: 5.0, "transfer": 1.0}
    assert limited.idle_by_cause()[0] == {held: 4.25, "transfer": 1.0, waits: 0.75}
    assert held not in facts_of(limits=5.0).idle_by_cause()[0]
    assert all(held not in causes for causes in limited.idle_by_cause()[1:])


@given(timelines(), st.sampled_from([None, 1.0, 3.0]))
def test_work_and_causes_fill_the_makespan_of_every_rank(timeline, limit):
    limits = None if limit is None else np.full(timeline.schedule.num_ranks, limit)
    facts = Facts(timeline, limits)
    sums = [sum(causes.values()) for causes in facts.idle_by_cause()]
    work = np.array(timeline.work_per_rank)
    assert (work + sums).tolist() == pytest.approx([timeline.makespan] * len(work))
    assert not facts.late.any()
    for rank in range(timeline.schedule.num_ranks):
        mine = facts.idle.rank == rank
        starts, ends = facts.idle.start[mine], facts.idle.end[mine]
        assert (starts < ends).all()
        assert (starts[1:] >= ends[:-1]).all()


@given(timelines())
def test_the_critical_path_is_that_of_the_timeline(timeline):
    facts = Facts(timeline)
    ops = [timeline.schedule.op(int(facts.codes[i])) for i in facts.path]
    assert ops == [timed.op for timed in timeline.critical_path()]
    assert sum(facts.split) == pytest.approx(timeline.makespan)
    assert facts.split.wait == pytest.approx(0)
    computed = [
        timed for timed in timeline.critical_path() if timed.op.kind not in (Kind.O, Kind.L)
    ]
    assert facts.split.compute == sum(t.end - t.start for t in computed)


@given(timelines(), st.data())
def test_slack_is_the_longest_delay_that_delays_nothing(timeline, data):
    facts = Facts(timeline)
    i = data.draw(st.integers(0, len(facts.codes) - 1))
    code, slack = int(facts.codes[i]), float(facts.slack[i])
    assert delayed(timeline, code, slack).makespan == timeline.makespan
    longer = delayed(timeline, code, slack + 0.5)
    assert max(end.max(initial=0) for end in longer.end) == facts.finish + 0.5


@given(timelines(), st.data())
def test_span_slack_makes_no_rank_end_later_than_the_span_allows(timeline, data):
    facts = Facts(timeline)
    i = data.draw(st.integers(0, len(facts.codes) - 1))
    first = np.array([start[0] if len(start) else 0.0 for start in timeline.start])
    allowed = first + timeline.span
    for extra, fits in ((0.0, True), (0.5, False)):
        later = delayed(timeline, int(facts.codes[i]), float(facts.span_slack[i]) + extra)
        ends = np.array([end[-1] if len(end) else 0.0 for end in later.end])
        assert bool((ends <= allowed).all()) is fits


def test_span_slack_where_the_span_is_shorter_than_the_makespan():
    facts = facts_of("zb-h2", transfer=0)
    assert (facts.timeline.span, facts.timeline.makespan) == (24, 27)
    last = place(facts, W(3, 7))
    assert (facts.start[int(facts.offsets[3])], facts.end[last]) == (3, 27)
    assert (facts.slack[last], facts.span_slack[last]) == (0, 0)
    last = place(facts, W(0, 7))
    assert (facts.end[last], facts.slack[last], facts.span_slack[last]) == (24, 3, 0)


def test_a_measured_arrival_and_a_late_start_are_told_apart():
    """F0 of stage 1 could start at 1.25, its message came at 2, and it started at 2.5."""
    timeline = facts_of("1f1b", 2, 1).timeline
    shift = [np.zeros(2), np.full(2, 1.25)]
    start, end = (
        tuple(side + late for side, late in zip(sides, shift, strict=True))
        for sides in (timeline.start, timeline.end)
    )
    start[0][1], end[0][1] = start[0][1] + 1.25, end[0][1] + 1.25
    moved = dataclasses.replace(timeline, start=start, end=end)
    arrived = np.full(timeline.schedule.num_codes, np.nan)
    arrived[timeline.schedule.code(F(0, 0))] = 2.0
    facts = Facts(moved, arrived=arrived)
    i = place(facts, F(1, 0))
    assert (facts.input_there[i], facts.late[i], facts.waited_for[i]) == (2.0, 0.5, INPUT)
    assert facts.split == (6, 1.25, 0, 0.5)


def test_an_arrival_that_was_looked_at_late_is_no_wait():
    """A busy rank asks for its message when it is free; the message was there before."""
    facts = facts_of("gpipe", 2, 2)
    i = place(facts, F(1, 1))
    assert (facts.input_there[i], facts.free[i]) == (2.25, 2.25)
    arrived = np.full(facts.timeline.schedule.num_codes, np.nan)
    arrived[facts.timeline.schedule.code(F(0, 1))] = 2.25 + 0.125
    assert Facts(facts.timeline, arrived=arrived).waited_for[i] == NOTHING


def test_rounding_is_no_time():
    """0.1 is not exact, so sums that should be equal differ by about 1e-15."""
    schedule = build("zb-h1", 4, 8)
    costs = Costs.of_ranks(schedule.placement, 1, 1.1, 0.9, 0.1)
    facts = Facts(simulate(schedule, costs), np.full(4, 4.0))
    assert (facts.idle.end - facts.idle.start).min() > 0.05
    assert facts.split.wait == 0
    for times in (facts.slack, facts.span_slack, facts.wait_for_input, facts.wait_for_rank):
        assert not ((times > 0) & (times < 0.05)).any()
    assert facts.waited_for[place(facts, F(1, 1))] == NOTHING


def test_many_ranks_are_summed_and_no_idle_time_is_said():
    lines = explain(facts_of("1f1b", 12, 24, transfer=0)).splitlines()
    assert len(lines) == 3
    assert (
        lines[0]
        == "critical path of 70 ops: compute 105 (100.0%), transfer 0 (0.0%), wait 0 (0.0%)"
    )
    assert lines[-1].startswith("idle on all ranks: drain 10.5%, ")
    assert explain(facts_of("zb-h1", 1, 2)).splitlines()[-1] == "no rank is ever idle"


def test_kinds_of_waits_are_named():
    facts = facts_of("1f1b", 2, 2, transfer=0)
    stage_one = facts.name(5 + Kind.BW * 2 + 1)
    assert stage_one == "waits for BW of stage 1 on rank 1"
    assert [facts.name(cause) for cause in range(2)] == ["warm-up", "drain"]
    assert place(facts, BW(1, 0)) >= 0


MOVED = [
    [F(0, 0), O(0, 0), F(0, 1), L(0, 0), BW(0, 0), BW(0, 1)],
    [F(1, 0), BW(1, 0), F(1, 1), R(1, 1), BW(1, 1)],
]


def moved(offload=1.5, load=1.5):
    costs = replace(Costs.uniform(2), offload=np.array([offload, 0]), load=np.array([load, 0]))
    return Facts(simulate(Schedule.from_ops("mine", linear(2), 2, MOVED), costs))


def test_waits_for_copies_are_named():
    """Rank 0 passes O at 2.5, ends F1 at 3.5; its gradients come at 4 and 8, its copy at 5."""
    facts = moved()
    assert facts.idle_by_cause()[0] == {
        "waits for BW of stage 1 on rank 1": 1.5,
        "waits for the copy to the host of stage 0": 1.5,
        "waits for the copy back of stage 0": 1.0,
    }
    back, forward, copy = (place(facts, op) for op in (BW(0, 0), F(0, 1), L(0, 0)))
    assert facts.waited_for[back] == LOAD
    assert facts.wait_for_input[back] == 1.5
    assert facts.waited_for[forward] == ORDER
    assert (facts.free[forward], facts.free[copy], facts.start[copy]) == (2.5, 0, 3.5)


def test_slack_of_copies():
    facts = moved(offload=0.5, load=0.25)
    offload, load = (place(facts, op) for op in (O(0, 0), L(0, 0)))
    assert (facts.end[offload], facts.slack[offload]) == (1.5, 1.5), "rank 1 reads F1 at 4"
    assert (facts.end[load], facts.slack[load]) == (2.75, 3.25), "BW0 may start at 6"


def test_memory_of_copies_and_second_forwards():
    facts = moved()
    assert facts.memory_after.tolist() == [1, 0, 1, 2, 1, 0, 1, 0, 0, 1, 0]
    peak = facts.peak_op(0)
    assert (peak.op, peak.memory, peak.start) == (L(0, 0), 2, 3.5)


def test_copies_on_the_critical_path_are_no_transfers():
    """The forward takes 1, its copies 3 and 2 with nothing beside them, the backward 2."""
    ops = [[F(0, 0), O(0, 0), L(0, 0), BW(0, 0)]]
    schedule = Schedule.from_ops("mine", linear(1), 1, ops)
    costs = dataclasses.replace(Costs.uniform(1), offload=np.array([3]), load=np.array([2]))
    facts = Facts(simulate(schedule, costs))
    assert facts.split._asdict() == {"compute": 3, "transfer": 0, "copies": 5, "wait": 0}
    assert "transfer 0 (0.0%), copies 5 (62.5%), wait" in explain(facts)
