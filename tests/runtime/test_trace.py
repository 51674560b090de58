"""Does a recorder keep the steps that are wanted, and turn the marks of a device into times?"""

import time
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from zerobubble import Pipeline
from zerobubble.formats.timeline import dumps, loads
from zerobubble.ir import BW, F, L, O, Schedule, linear
from zerobubble.runtime.clock import EventClock
from zerobubble.runtime.trace import RecordedStep, Recorder, _step, measured_costs
from zerobubble.schedules import build

CPU = torch.device("cpu")


def run_steps(recorder, numbers):
    """Run one op and one send in each step; say which steps were recorded at once."""
    recorded = []
    for number in numbers:
        if recorder.begin_step(number):
            recorded.append(number)
            recorder.run(lambda: time.sleep(0.001))
            recorder.send(lambda: None)
            recorder.end_step(lambda number=number: [number])
    return recorded


@pytest.mark.parametrize(
    ("steps", "recorded", "kept"),
    [
        (0, [], []),
        (2, [1, 2, 3, 4, 5], [4, 5]),
        (9, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        (10**20, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        (range(2, 4), [2, 3], [2, 3]),
        (range(5, 6), [5], [5]),
        (range(7, 9), [], []),
    ],
)
def test_the_wanted_steps_are_kept(steps, recorded, kept):
    recorder = Recorder(CPU, steps)
    assert run_steps(recorder, range(1, 6)) == recorded
    for _ in range(2):  # reading does not forget
        found = recorder.steps_ms()
        assert [step.number for step in found] == kept
        assert [step.num_bytes for step in found] == [[number] for number in kept]
    recorder.clear()
    assert recorder.steps_ms() == []


def test_steps_that_come_after_a_reading_push_out_the_oldest():
    recorder = Recorder(CPU, 2)
    run_steps(recorder, (1, 2))
    recorder.steps_ms()
    run_steps(recorder, (3,))
    assert [step.number for step in recorder.steps_ms()] == [2, 3]


def test_a_message_never_arrives_before_it_was_sent():
    """Clocks of two machines agree but for half of a message's round trip."""
    times = [np.array([0.0, 4.0]), np.array([1.0, 5.0])], [np.array([0.9, 2]), np.array([2.0, 3])]
    sends = [np.array([1.0]), np.array([3.0])]
    steps = [
        RecordedStep(1, start, end, start, end, sent, [8])
        for (start, end), sent in zip(times, sends, strict=True)
    ]
    transfers = _step(build("1f1b", 2, 1), steps, None).transfers
    assert [(each.sent, each.arrived) for each in transfers] == [(1.0, 1.0), (3.0, 4.0)]


def test_an_op_lies_between_its_marks_and_a_send_follows_it():
    recorder = Recorder(CPU, 1)
    before = time.perf_counter_ns() / 1e6
    run_steps(recorder, (1,))
    (step,) = recorder.steps_ms()
    (start,), (end,), (sent,) = step.start, step.end, step.sent
    assert before <= start <= end - 1 <= sent - 1 <= time.perf_counter_ns() / 1e6 - 1
    assert (step.host_start.tolist(), step.host_end.tolist()) == ([start], [end])


def test_what_is_done_again_is_recorded_once():
    recorder = Recorder(CPU, 1)
    recorder.begin_step(1)
    for _ in range(2):
        recorder.begin_again()
        recorder.run(lambda: None)
        recorder.send(lambda: None)
    recorder.end_step(lambda: [8])
    (step,) = recorder.steps_ms()
    assert len(step.start) == len(step.end) == len(step.sent) == 1


def test_the_times_of_an_emulated_device_take_the_place_of_those_of_the_host():
    recorder = Recorder(CPU, 1)
    run_steps(recorder, (1,))
    recorder.put_device_times([(0.0, 1.0), (5.0, 7.5)])  # the first was taken back
    (step,) = recorder.steps_ms()
    assert (step.start.tolist(), step.end.tolist()) == ([5.0], [7.5])
    assert step.host_end[0] - step.host_start[0] >= 1
    assert len(step.sent) == 0


class Machine:
    """A host and a device whose events happen a while after they are recorded."""

    def __init__(self):
        self.host_ms, self.backlog_ms, self.num_waits = 1000.0, 0.0, 0

    def wait(self):
        self.num_waits += 1
        self.host_ms, self.backlog_ms = self.host_ms + self.backlog_ms, 0.0

    def event(self, enable_timing):
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, machine):
        self.machine = machine

    def record(self):
        self.at_ms = self.machine.host_ms + self.machine.backlog_ms

    def synchronize(self):
        self.machine.wait()

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.fixture
def machine():
    machine = Machine()
    with (
        patch("torch.cuda.Event", machine.event),
        patch("torch.cuda.synchronize", machine.wait),
        patch("time.perf_counter_ns", lambda: int(machine.host_ms * 1e6)),
    ):
        yield machine


def test_events_tell_when_the_device_ran_what_the_host_had_issued_before(machine):
    clock, marks = EventClock(), []
    for host_ms, backlog_ms in ((1000, 30), (1001, 35), (1002, 40)):
        machine.host_ms, machine.backlog_ms = float(host_ms), float(backlog_ms)
        marks.append(clock.mark())
    assert machine.num_waits == 0, "while a step runs, nothing waits for the device"
    np.testing.assert_allclose(clock.host_ms(marks), [1000, 1001, 1002])
    np.testing.assert_allclose(clock.device_ms(marks), [1030, 1036, 1042])


def test_events_of_a_chosen_range_are_read_right_after_it(machine):
    recorder = Recorder(torch.device("cuda"), range(2, 3))
    for number in range(1, 6):
        if recorder.begin_step(number):
            recorder.run(lambda: None)
            recorder.end_step(list)
        assert (machine.num_waits > 0) == (number >= 3)
    assert len(recorder.steps_ms()) == 1
    waits = machine.num_waits
    recorder.steps_ms()
    assert machine.num_waits == waits


def test_copies_have_their_own_times_beside_the_ops():
    """O stands at the end of the forwards, long after its copy; B waits for the one back."""
    ops = [F(0, 0), F(0, 1), O(0, 0), O(0, 1), L(0, 0), L(0, 1), BW(0, 0), BW(0, 1)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    layers = [lambda: nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))]
    pipe = Pipeline(layers, schedule, lambda output, target: (output - target).square().mean())
    for _ in range(2):
        pipe.step(torch.ones(512, 256), torch.ones(512, 256))
    (step,) = pipe.measured_run().steps
    (start,), (end,), (host_start,) = step.timeline.start, step.timeline.end, step.host_start
    assert (end >= start).all()
    for forward, offload, load, backward in ((0, 2, 4, 6), (1, 3, 5, 7)):
        assert end[offload] > start[offload] > start[forward]
        assert start[load] >= end[offload]
        assert end[backward] > end[load] > start[load] >= host_start[load]
    assert start[2] < host_start[2], "the copy begins before the host comes to O"
    assert start[3] >= end[2], "one after the other"
    found = measured_costs([step.timeline])
    assert found.offload[0] == np.median((end - start)[2:4])
    assert found.load[0] == np.median((end - start)[4:6])
    assert same_lanes(loads(dumps(pipe.measured_run()), "timeline.json"), pipe.measured_run())


def same_lanes(read, run):
    times = [np.concatenate(each.steps[0].timeline.start) for each in (read, run)]
    return np.allclose(*times, atol=1e-6)
