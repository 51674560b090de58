"""Do emulated stages start and end their ops when the simulation says?"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, random_schedule
from zerobubble import Costs, Pipeline, UsageError, build, simulate
from zerobubble.ir import BW, F, L, O, Placement, Schedule, linear
from zerobubble.runtime.emulate import (
    Device,
    MonotonicHost,
    emulated_batch,
    emulated_loss,
    emulated_stages,
)
from zerobubble.runtime.emulated_copies import emulated_pipeline


class StandingHost:
    """A clock that always shows 0 and sleeps no time: the device alone decides."""

    def __init__(self, ms=0.0):
        self.ms = ms
        self.slept_until = []

    def now_ms(self):
        return self.ms

    def sleep_until(self, ms):
        self.slept_until.append(ms)


def run(schedule, costs):
    """Run one step on one rank; return the device times of its ops."""
    device = Device(StandingHost())
    pipe = Pipeline(emulated_stages(schedule, costs, device), schedule, emulated_loss)
    optimizer = pipe.optimizer(torch.optim.SGD, lr=1.0)
    batch = emulated_batch(schedule.num_microbatches)
    pipe.step(batch, batch)
    optimizer.step()
    return device, optimizer


@given(st.data())
def test_times_of_any_schedule_on_one_rank_are_the_simulated_ones(data):
    placement = Placement((0,) * data.draw(st.integers(1, 3)))
    random = data.draw(st.randoms(use_true_random=False))
    share_fused = data.draw(st.sampled_from((0.0, 0.5, 1.0)))
    schedule = random_schedule(random, placement, data.draw(st.integers(1, 4)), share_fused)
    costs = data.draw(costs_for(schedule.num_stages))
    device, _ = run(schedule, costs)
    expected = simulate(schedule, costs)
    np.testing.assert_array_equal(device.ops, np.column_stack((expected.start[0], expected.end[0])))
    assert device.host.slept_until == expected.end[0].tolist()


def test_every_w_reaches_its_parameter_once_for_each_microbatch():
    _, optimizer = run(build("zb-h1", 1, 5), Costs.uniform(1))
    assert optimizer.grad_norm == 5
    _, optimizer = run(build("1f1b", 1, 5), Costs.uniform(1))
    assert optimizer.grad_norm == 5


def test_an_op_starts_at_the_later_of_its_input_and_the_end_of_the_op_before():
    device = Device(StandingHost())
    assert device.run(2.0, ready=5.0) == 7.0
    assert device.run(2.0, ready=5.0) == 9.0
    assert device.ops == [(5.0, 7.0), (7.0, 9.0)]


def test_only_a_wait_that_blocked_is_charged():
    device = Device(StandingHost())
    device.host.ms = 50.0
    device.waited(20e-6)
    assert device.run(1.0) == 1.0
    device.waited(1.0)
    assert device.run(1.0) == 51.0


def test_a_message_before_its_modelled_time_costs_nothing():
    device = Device(StandingHost())
    device.host.ms = 3.0
    device.waited(1.0)
    assert device.run(1.0, ready=4.0) == 5.0


def test_sleep_ends_no_earlier_than_asked_and_a_past_time_is_no_sleep():
    host = MonotonicHost()
    until = host.now_ms() + 2
    host.sleep_until(until)
    assert host.now_ms() >= until
    host.sleep_until(host.now_ms() - 1e6)


def test_costs_for_another_number_of_stages_are_refused():
    schedule = build("1f1b", 1, 2)
    with pytest.raises(UsageError, match="costs for 2 stages given, but 1f1b has 1"):
        emulated_stages(schedule, Costs.uniform(2), Device(StandingHost()))


def test_copies_take_turns_on_the_engine_of_their_direction():
    device = Device(StandingHost())
    device.run(2.0)
    assert device.begin_offload(5.0) == (2.0, 7.0)
    device.run(1.0)
    assert device.begin_offload(1.0) == (7.0, 8.0)
    device.wait_for(7.0)
    assert device.begin_load(4.0) == (7.0, 11.0)
    assert device.begin_load(1.0) == (11.0, 12.0)
    assert device.run(1.0) == 8.0, "beside the copies"
    device.wait_for(12.0)
    assert device.run(1.0) == 13.0


def test_shared_copy_engines_are_refused():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), O(0, 0), L(0, 0), BW(0, 0)]])
    costs = replace(Costs.uniform(1), ranks_per_engine=2)
    with pytest.raises(UsageError, match=r"copy engines of their own: .*ranks_per_engine 1, not 2"):
        emulated_pipeline(schedule, costs, Device(StandingHost()))
