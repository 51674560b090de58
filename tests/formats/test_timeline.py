"""Does a measured run survive JSON, and is every malformed file refused in one clear line?"""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_json import atoms, values
from tests.strategies import measured_runs
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.formats.json import dumps as dumps_schedule
from zerobubble.formats.timeline import dumps, load, loads, save
from zerobubble.ir import BW, F, L, O, Schedule, linear
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.schedules import build
from zerobubble.simulate import Timeline, simulate

SCHEDULE = build("1f1b", 2, 1)
START = (np.array([0.0, 4.0]), np.array([1.5, 2.5]))
END = (np.array([1.0, 6.0]), np.array([2.5, 3.5]))
TRANSFERS = (Transfer(F(0, 0), 0, 1, 1.0, 1.5, 4096), Transfer(BW(1, 0), 1, 0, 3.5, 4.0, 8))


def a_run(costs=None):
    timeline = Timeline(SCHEDULE, costs or Costs.of_ranks(SCHEDULE.placement), START, END)
    late = tuple(times - 0.125 for times in START), tuple(times - 0.25 for times in END)
    return MeasuredRun(SCHEDULE, costs, (MeasuredStep(17, timeline, *late, TRANSFERS),))


VALID = json.loads(dumps(a_run()))


def same(run, other):
    """Say whether two runs hold the same values."""
    return (
        run.schedule == other.schedule
        and (run.costs and run.costs.to_dict()) == (other.costs and other.costs.to_dict())
        and [step.number for step in run.steps] == [step.number for step in other.steps]
        and [step.transfers for step in run.steps] == [step.transfers for step in other.steps]
        and all(
            np.array_equal(mine, its)
            for step, twin in zip(run.steps, other.steps, strict=True)
            for column, its_column in zip(columns(step), columns(twin), strict=True)
            for mine, its in zip(column, its_column, strict=True)
        )
    )


def columns(step):
    return step.timeline.start, step.timeline.end, step.host_start, step.host_end


@given(measured_runs())
def test_a_run_round_trips(run):
    read = loads(dumps(run), "timeline.json")
    assert same(read, run)
    expected = run.costs or Costs.of_ranks(run.schedule.placement)
    for step in read.steps:
        assert step.timeline.costs.to_dict() == expected.to_dict()


def test_a_file_round_trips(tmp_path):
    run = a_run(Costs.uniform(2, f=1, b=0.5, w=0.5, transfer=0.25))
    save(run, tmp_path / "timeline.json")
    assert same(load(tmp_path / "timeline.json"), run)


def test_the_layout_is_the_documented_one():
    expected = {
        "format": "zerobubble-timeline",
        "version": 2,
        "unit": "ms",
        "schedule": json.loads(dumps_schedule(SCHEDULE)),
        "costs": None,
        "steps": [
            {
                "number": 17,
                "start": [[0.0, 4.0], [1.5, 2.5]],
                "end": [[1.0, 6.0], [2.5, 3.5]],
                "host_start": [[-0.125, 3.875], [1.375, 2.375]],
                "host_end": [[0.75, 5.75], [2.25, 3.25]],
                "transfers": [
                    {
                        "op": "F0@0",
                        "sender": 0,
                        "reader": 1,
                        "sent": 1.0,
                        "arrived": 1.5,
                        "bytes": 4096,
                    },
                    {
                        "op": "BW0@1",
                        "sender": 1,
                        "reader": 0,
                        "sent": 3.5,
                        "arrived": 4.0,
                        "bytes": 8,
                    },
                ],
            }
        ],
    }
    assert expected == VALID


def test_times_are_written_to_the_nanosecond():
    schedule = build("1f1b", 1, 1)
    times = (np.array([0.0, 1 / 3]),), (np.array([1 / 3, 2 / 3]),)
    step = MeasuredStep(1, Timeline(schedule, Costs.uniform(1), *times), *times)
    (written,) = json.loads(dumps(MeasuredRun(schedule, None, (step,))))["steps"]
    assert written["end"] == [[0.333333, 0.666667]]


def test_version_1_is_read_with_host_times_of_the_ops_and_steps_counted_from_1():
    step = VALID["steps"][0]
    old = {key: VALID[key] for key in ("format", "unit", "schedule")} | {"version": 1}
    old["steps"] = [{key: step[key] for key in ("start", "end")}] * 2
    run = loads(json.dumps(old), "timeline.json")
    assert [step.number for step in run.steps] == [1, 2]
    for step in run.steps:
        assert [times.tolist() for times in step.timeline.start] == [[0.0, 4.0], [1.5, 2.5]]
        assert (step.host_start, step.host_end) == (step.timeline.start, step.timeline.end)
        assert step.transfers == ()


def reason(value):
    with pytest.raises(UsageError) as error:
        loads(value if isinstance(value, str) else json.dumps(value), "timeline.json")
    message = str(error.value)
    assert message.startswith("timeline.json: ")
    assert "\n" not in message
    return message.removeprefix("timeline.json: ")


def step(**changes):
    return VALID | {"steps": [VALID["steps"][0] | changes]}


def transfer(**changes):
    return step(transfers=[VALID["steps"][0]["transfers"][0] | changes])


def without(value, key):
    return {k: v for k, v in value.items() if k != key}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "line 1, column 1: not JSON: "),
        (dumps(a_run())[:300], "line 3, column "),
        ([], 'this is no measured timeline: it has no "format": "zerobubble-timeline"'),
        (VALID["schedule"], 'this is no measured timeline: it has no "format": '),
        (VALID | {"version": 3}, "version is 3, but this release reads 1 and 2"),
        (VALID | {"version": True}, "version is True, but this release reads 1 and 2"),
        (without(VALID, "steps"), "a timeline has no key 'steps': its keys are format, version, "),
        (VALID | {"extra": 1}, "a timeline has an unknown key 'extra': its keys are format, "),
        (VALID | {"unit": "s"}, "unit must be 'ms', not 's'"),
        (VALID | {"schedule": None}, "no step was recorded: run again with --trace-steps 1 or "),
        (VALID | {"schedule": 3}, "schedule: a schedule is an object with the keys format, "),
        (
            VALID | {"schedule": VALID["schedule"] | {"orders": [["F0@0"], ["F0@1", "BW0@1"]]}},
            "1f1b: rank 0: BW0 of stage 0 is missing (rule every-op-once): add it",
        ),
        (VALID | {"costs": []}, "costs must be an object or null, not []"),
        (VALID | {"costs": {"forward": 1}}, "costs: key 'backward_input' is missing"),
        (VALID | {"steps": {}}, "steps must be a list, not {}"),
        (VALID | {"steps": [1]}, "steps[0] must be an object, not 1"),
        (VALID | {"steps": [{}]}, "steps[0] has no key 'number': its keys are number, start, end"),
        (step(extra=1), "steps[0] has an unknown key 'extra': its keys are number, "),
        (step(number=-1), "steps[0]: number must be a whole number of 0 or more, not -1"),
        (VALID | {"steps": VALID["steps"] * 2}, "the steps have the numbers [17, 17], which must"),
        (step(start=[[0.0, 4.0]]), "steps[0]: start has 1 lists for 2 ranks"),
        (step(end=[[1.0, 6.0], [2.5]]), "steps[0]: end[1] has 1 times for 2 ops"),
        (step(host_end=[[1.0, 6.0], 1]), "steps[0]: host_end[1] must be a list, not 1"),
        (step(start=[[0.0, "4"], [1.5, 2.5]]), "steps[0]: start[0]: '4' is not a time in ms"),
        (step(start=[[0.0, True], [1.5, 2.5]]), "steps[0]: start[0]: True is not a time in ms"),
        (step(start=[[0.0, float("nan")], [1, 2]]), "steps[0]: start[0]: nan is not a time in ms"),
        (step(start=[[0.0, 10**400], [1, 2]]), "steps[0]: start[0]: 1000000000000000"),
        (
            step(start=[[0.5, 4.0], [1.5, 2.25]]),
            "steps[0]: rank 1: BW0 of stage 1 (op 1) starts before the op ahead of it ",
        ),
        (
            step(end=[[1.0, 3.5], [2.5, 3.5]]),
            "steps[0]: rank 0: BW0 of stage 0 (op 1) ends before it starts: times ",
        ),
        (
            step(host_end=[[-0.25, 3.75], [1.25, 2.25]]),
            "steps[0]: host of rank 0: F0 of stage 0 (op 0) ends before it starts: times ",
        ),
        (step(transfers=1), "steps[0]: transfers must be a list, not 1"),
        (step(transfers=[1]), "steps[0]: transfers[0]: it must be an object, not 1"),
        (transfer(op="X"), "steps[0]: transfers[0]: op: 'X' is not an op: write kind, microbatch "),
        (transfer(op="F1@0"), "steps[0]: transfers[0]: op: 'F1@0' does not exist: there are "),
        (transfer(sent=None), "steps[0]: transfers[0]: sent: None is not a time in ms"),
        (transfer(bytes=1.5), "steps[0]: transfers[0]: bytes must be a whole number of 0 or more"),
        (
            transfer(reader=0),
            "steps[0]: transfers[0]: the output of F0 of stage 0 does not travel from rank 0 to ",
        ),
        (
            transfer(arrived=0.75),
            "steps[0]: transfers[0]: the output of F0 of stage 0 arrived at 0.75, before it was ",
        ),
        (
            step(transfers=VALID["steps"][0]["transfers"] * 2),
            "steps[0]: transfers[2]: the output of F0 of stage 0 travels twice: delete one",
        ),
        (
            transfer(op="F0@1"),
            "steps[0]: transfers[0]: the output of F0 of stage 1 does not travel from rank 0 to ",
        ),
    ],
)
def test_every_fault_is_told_in_one_line(value, message):
    assert reason(value).startswith(message)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*: No such file or directory"):
        load(tmp_path / "timeline.json")


@given(st.sampled_from(sorted(VALID)), values)
def test_any_value_of_a_key_is_read_or_refused(key, value):
    with suppress(UsageError):
        loads(json.dumps(VALID | {key: value}), "timeline.json")


@given(st.sampled_from(sorted(VALID["steps"][0])), values | st.lists(st.lists(atoms)))
def test_any_value_in_a_step_is_read_or_refused(key, value):
    with suppress(UsageError):
        loads(json.dumps(step(**{key: value})), "timeline.json")


MOVED = Schedule.from_ops(
    "moved",
    linear(1),
    2,
    [[F(0, 0), F(0, 1), O(0, 1), O(0, 0), L(0, 1), L(0, 0), BW(0, 0), BW(0, 1)]],
)


def a_moved_run(start_of_o1=3.0):
    costs = Costs.uniform(1).with_bandwidth(0.5)
    timeline = simulate(MOVED, costs)
    start = (timeline.start[0].copy(),)
    start[0][2] = start_of_o1
    marks = (np.arange(8.0),), (np.arange(8.0) + 0.5,)
    step = MeasuredStep(1, replace(timeline, start=start), *marks)
    return MeasuredRun(MOVED, costs, (step,))


def test_copies_run_beside_the_ops_and_in_the_order_of_their_forwards():
    """O1 stands first and is copied last, from 3 to 5."""
    run = a_moved_run()
    assert same(loads(dumps(run), "timeline.json"), run)


def test_copies_of_one_direction_that_overlap_are_refused():
    message = r"O1 of stage 0 \(op 2\) starts before the op ahead of it ends"
    with pytest.raises(UsageError, match=message):
        loads(dumps(a_moved_run(start_of_o1=2.5)), "timeline.json")
