"""Does a trace obey the rules of the trace event format, and say what the timeline says?

The rules are those of "Trace Event Format" (Chromium project) as far as Perfetto reads it: every
event names its phase, process and time; slices of one track do not overlap; an arrow has one begin
and one end, each within a slice.
"""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import (
    costs_for,
    costs_of_copies_for,
    measured_runs,
    schedules,
    schedules_with_copies,
)
from zerobubble.costs import Costs
from zerobubble.formats.chrome import dumps, trace_events
from zerobubble.ir import BW, B, F, L, O, Placement, Schedule, W, linear
from zerobubble.measured import MeasuredStep, Transfer
from zerobubble.schedules import build
from zerobubble.simulate import Timeline, simulate

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
TINY = 1e-6


def check(shown):
    """Check a trace against the format; return its events by phase."""
    trace = json.loads(dumps(shown))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    events = trace["traceEvents"]
    assert events == trace_events(shown)
    phases = defaultdict(list)
    for event in events:
        assert set(event) - {"ph"} == REQUIRED[event["ph"]]
        phases[event["ph"]].append(event)
    times = [event["ts"] for event in events[len(phases["M"]) :]]
    assert times == sorted(times)
    assert times[0] == 0
    tracks = defaultdict(list)
    for event in phases["X"]:
        tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + TINY
        assert min(event["dur"] for event in slices) >= 0
    named = {(e["pid"], e["tid"]) for e in phases["M"] if e["name"] == "thread_name"}
    assert set(tracks) <= named
    assert {event["name"] for event in phases["M"]} == NAMES
    check_arrows(phases, tracks)
    return phases


def check_arrows(phases, tracks):
    begins, ends = ({event["id"]: event for event in phases[phase]} for phase in "sf")
    assert len(begins) == len(phases["s"]) == len(phases["f"])
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        end = ends[number]
        assert begin["ts"] < end["ts"]
        assert end["bp"] == "e"
        for arrow in (begin, end):
            (inside,) = [
                s
                for s in tracks[arrow["pid"], arrow["tid"]]
                if s["ts"] <= arrow["ts"] < s["ts"] + s["dur"]
            ]
            assert inside["name"] == arrow["name"] == begin["name"]


def on_track(phases, rank, track):
    """List name, begin and end of the slices of a track by its name."""
    (tid,) = [
        e["tid"]
        for e in phases["M"]
        if (e["name"], e["pid"], e["args"].get("name")) == ("thread_name", rank, track)
    ]
    return [
        (e["name"], e["ts"], e["ts"] + e["dur"])
        for e in phases["X"]
        if (e["pid"], e["tid"]) == (rank, tid)
    ]


SCHEDULE = Schedule.from_ops(
    "mine", linear(2), 1, [[F(0, 0), BW(0, 0)], [F(1, 0), B(1, 0), W(1, 0)]]
)


def test_a_simulated_timeline_has_ops_messages_and_memory():
    costs = Costs.uniform(2, f=1, b=2, w=3, transfer=0.5, activation=4, kept=0.25)
    phases = check(simulate(SCHEDULE, costs))
    assert on_track(phases, 0, "ops") == [("F0", 0, 1000), ("BW0", 5000, 10000)]
    assert on_track(phases, 1, "ops") == [
        ("F0", 1500, 2500),
        ("B0", 2500, 4500),
        ("W0", 4500, 7500),
    ]
    assert on_track(phases, 0, "sends") == [("activation of F0", 1000, 1500)]
    assert on_track(phases, 1, "receives") == [("activation of F0", 1000, 1500)]
    assert on_track(phases, 1, "sends") == [("gradient of B0", 4500, 5000)]
    assert on_track(phases, 0, "receives") == [("gradient of B0", 4500, 5000)]
    memory = [(e["pid"], e["ts"], e["args"]["activations"]) for e in phases["C"]]
    assert memory == [
        (0, 0, 4), (1, 1500, 4), (1, 4500, 1), (1, 7500, 0), (0, 10000, 0)
    ]  # fmt: skip
    assert "host" not in {e["args"].get("name") for e in phases["M"]}
    assert [e["args"]["name"] for e in phases["M"] if e["name"] == "process_name"] == [
        "rank 0",
        "rank 1",
    ]


def test_copies_have_tracks_of_their_own():
    ops = [F(0, 0), O(0, 0), F(0, 1), L(0, 0), BW(0, 1), BW(0, 0)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    phases = check(simulate(schedule, Costs.uniform(1).with_bandwidth(0.5)))
    assert on_track(phases, 0, "copy out") == [("O0", 1000, 3000)]
    assert on_track(phases, 0, "copy in") == [("L0", 4000, 6000)]
    assert [name for name, *_ in on_track(phases, 0, "ops")] == ["F0", "F1", "BW1", "BW0"]
    memory = [(e["ts"], e["args"]["activations"]) for e in phases["C"]]
    assert memory == [(0, 1), (3000, 1), (4000, 2), (6000, 1), (8000, 0)]


@given(schedules_with_copies(), st.data())
def test_any_timeline_with_copies_obeys_the_format(schedule, data):
    check(simulate(schedule, data.draw(costs_of_copies_for(schedule.num_stages))))


def test_a_copy_that_takes_no_time_comes_before_one_that_starts_with_it():
    """In the order of the rank, O of the stage whose copy takes time stands first."""
    ops = [F(0, 0), F(1, 0), O(1, 0), O(0, 0), L(1, 0), L(0, 0), BW(1, 0), BW(0, 0)]
    schedule = Schedule.from_ops("mine", Placement((0, 0)), 1, [ops])
    costs = replace(Costs.uniform(2, f=0), offload=[0, 0.5])
    phases = check(simulate(schedule, costs))
    copies = on_track(phases, 0, "copy out")
    assert [(start, end) for _, start, end in copies] == [(0, 0), (0, 500)]


def test_a_message_takes_the_time_of_its_boundary_in_either_direction():
    costs = Costs.from_dict(
        {"forward": 1, "backward_input": 1, "backward_weight": 1, "transfer": [2, 4]}, linear(3)
    )
    phases = check(simulate(build("1f1b", 3, 1), costs))
    assert on_track(phases, 0, "sends") == [("activation of F0", 1000, 3000)]
    assert on_track(phases, 1, "sends") == [
        ("activation of F0", 4000, 8000),
        ("gradient of BW0", 17000, 19000),
    ]
    assert on_track(phases, 1, "receives")[1] == ("gradient of BW0", 11000, 15000)


def measured(host_shift=0.0, **changes):
    start = (np.array([0.25, 5.0]), np.array([1.5, 2.5, 4.5]))
    end = (np.array([1.0, 9.0]), np.array([2.5, 4.0, 7.5]))
    host = tuple(t - host_shift for t in start), tuple(t - host_shift for t in end)
    transfers = (
        Transfer(F(0, 0), 0, 1, 1.125, changes.get("arrived", 1.5), 64),
        Transfer(B(1, 0), 1, 0, 4.25, 5.0, 64),
    )
    return MeasuredStep(17, Timeline(SCHEDULE, Costs.uniform(2), start, end), *host, transfers)


def test_a_measured_step_has_its_transfers_and_begins_at_0():
    phases = check(measured())
    assert on_track(phases, 0, "ops") == [("F0", 0, 750), ("BW0", 4750, 8750)]
    assert on_track(phases, 0, "sends") == [("activation of F0", 875, 1250)]
    assert on_track(phases, 0, "receives") == [("gradient of B0", 4000, 4750)]
    assert {e["args"]["bytes"] for e in phases["X"] if e["cat"] == "sends"} == {64}
    assert json.loads(dumps(measured()))["otherData"] == {
        "schedule": "mine",
        "placement": "linear",
        "step": "17",
    }


def test_the_host_has_a_track_where_it_differs_from_the_device():
    phases = check(measured(host_shift=0.25))
    assert on_track(phases, 0, "host") == [("F0", 0, 750), ("BW0", 4750, 8750)]
    assert on_track(phases, 0, "ops") == [("F0", 250, 1000), ("BW0", 5000, 9000)]


def test_an_arrow_points_forward_even_where_clocks_say_otherwise():
    phases = check(measured(arrived=0.5))
    assert on_track(phases, 1, "receives") == [("activation of F0", 875, 876)]


def test_messages_under_way_at_once_follow_each_other_on_a_track():
    phases = check(simulate(build("gpipe", 2, 3), Costs.uniform(2, f=1, transfer=5)))
    assert on_track(phases, 0, "sends") == [
        ("activation of F0", 1000, 2000),
        ("activation of F1", 2000, 3000),
        ("activation of F2", 3000, 8000),
    ]
    assert on_track(phases, 1, "receives") == [
        ("activation of F0", 1000, 6000),
        ("activation of F1", 6000, 7000),
        ("activation of F2", 7000, 8000),
    ]


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "interleaved:v=3", "dualpipe-v"])
def test_named_schedules_obey_the_format(name):
    schedule = build(name, 4, 8)
    check(simulate(schedule, Costs.of_ranks(schedule.placement, 1, 1, 1, 0.25)))


@given(schedules().flatmap(lambda s: st.tuples(st.just(s), costs_for(s.num_stages))))
def test_any_timeline_obeys_the_format(pair):
    phases = check(simulate(*pair))
    assert len([e for e in phases["X"] if e["cat"] == "ops"]) == pair[0].num_ops


@given(measured_runs())
def test_any_measured_step_obeys_the_format(run):
    for step in run.steps:
        phases = check(step)
        assert len(phases["s"]) == len(step.transfers)
