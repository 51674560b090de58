"""Is the measured timeline the one that ran: its own schedule, without overlap, causes first?"""

import time
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import launch, values
from zerobubble import Costs, Pipeline, build
from zerobubble.graph import places, producers
from zerobubble.ir import Kind
from zerobubble.runtime.clock import clock_offset_ms
from zerobubble.runtime.transport import Transport


SCHEDULES = {
    "zb-h1": build("zb-h1", 3, 6),
    "interleaved": build("interleaved", 3, 6),
    "random": placed(3, "v", 4),
}
NUM_STEPS = 3


def measure(rank, schedules):
    """Gather timelines, and the same times on the clock that all processes of a host share."""
    found = {}
    for key, schedule in schedules.items():
        pipe = Pipeline(
            models.built(models.transformer()), schedule, models.loss_fn, num_recorded_steps=2
        )
        forwards = {number: note_forwards(stage) for number, stage in pipe.stages.items()}
        for _ in range(NUM_STEPS):
            pipe.step(*models.tokens(2 * schedule.num_microbatches))
        pipe.eval(*models.tokens(2 * schedule.num_microbatches))
        steps = [(step.start, step.end) for step in pipe.recorder.steps_ms()]
        found[key] = pipe.timelines(), steps, forwards, pipe.measured_run()
    return found


def note_forwards(stage):
    """Note when a stage's layers start and end, on the clock of the host."""
    noted = []
    stage.module.register_forward_pre_hook(lambda *_: noted.append(time.perf_counter_ns() / 1e6))
    stage.module.register_forward_hook(lambda *_: noted.append(time.perf_counter_ns() / 1e6))
    return noted


@pytest.fixture(scope="module")
def measured():
    return values(launch(measure, 3, SCHEDULES))


@pytest.mark.parametrize("key", SCHEDULES)
def test_rank_0_gets_the_last_training_steps_of_the_schedule_that_ran(key, measured):
    timelines = measured[0][key][0]
    assert [timeline.schedule for timeline in timelines] == [SCHEDULES[key]] * 2
    assert [of_rank[key][0] for of_rank in measured[1:]] == [[], []]


@pytest.mark.parametrize("key", SCHEDULES)
def test_ops_of_a_rank_do_not_overlap(key, measured):
    for timeline in measured[0][key][0]:
        for start, end, order in zip(
            timeline.start, timeline.end, timeline.schedule.orders, strict=True
        ):
            assert len(start) == len(end) == len(order)
            assert (start <= end).all()
            assert (end[:-1] <= start[1:]).all()
        assert min(start[0] for start in timeline.start) == 0


@pytest.mark.parametrize("key", SCHEDULES)
def test_every_op_starts_after_the_op_it_needs_has_ended(key, measured):
    """On the clock of the host, to which the clocks of the ranks were not yet aligned."""
    schedule = SCHEDULES[key]
    needs = producers(schedule)
    for step in range(2):
        start, end = np.full((2, schedule.num_codes), np.nan)
        for rank, order in enumerate(schedule.orders):
            start[order], end[order] = measured[rank][key][1][step]
        codes = np.concatenate(schedule.orders)
        codes = codes[needs[codes] >= 0]
        assert (end[needs[codes]] <= start[codes]).all()


@pytest.mark.parametrize("key", SCHEDULES)
def test_the_layers_run_between_start_and_end_of_their_forward(key, measured):
    schedule = SCHEDULES[key]
    m = schedule.num_microbatches
    for rank, order in enumerate(schedule.orders):
        _, steps, forwards, _ = measured[rank][key]
        kinds, stages, _ = schedule.fields(order)
        for stage, noted in forwards.items():
            runs = np.array(noted).reshape(NUM_STEPS + 1, m, 2)[1:NUM_STEPS]  # the last is eval
            for (start, end), run in zip(steps, runs, strict=True):
                is_forward = (kinds == Kind.F) & (stages == stage)
                assert (start[is_forward] <= run[:, 0]).all()
                assert (run[:, 1] <= end[is_forward]).all()


@pytest.mark.parametrize("key", SCHEDULES)
def test_ranks_of_one_machine_keep_their_common_clock(key, measured):
    for step, timeline in enumerate(measured[0][key][0]):
        for rank in range(3):
            start, end = measured[rank][key][1][step]
            origin = min(measured[r][key][1][step][0][0] for r in range(3))
            np.testing.assert_allclose(timeline.start[rank], start - origin, atol=1e-6)
            np.testing.assert_allclose(timeline.end[rank], end - origin, atol=1e-6)


@pytest.mark.parametrize("key", SCHEDULES)
def test_the_run_of_rank_0_has_the_numbers_of_its_steps_and_on_a_cpu_host_times_of_the_ops(
    key, measured
):
    run = measured[0][key][3]
    assert (run.schedule, run.costs) == (SCHEDULES[key], None)
    assert [step.number for step in run.steps] == [2, 3]
    for step, timeline in zip(run.steps, measured[0][key][0], strict=True):
        for columns in zip(
            (step.timeline.start, step.timeline.end, step.host_start, step.host_end),
            (timeline.start, timeline.end, timeline.start, timeline.end),
            strict=True,
        ):
            np.testing.assert_array_equal(*map(np.concatenate, columns))
    assert [of_rank[key][3] for of_rank in measured[1:]] == [None, None]


@pytest.mark.parametrize("key", SCHEDULES)
def test_every_message_travels_from_the_end_of_its_op_to_the_start_of_the_one_that_reads_it(
    key, measured
):
    schedule = SCHEDULES[key]
    needs, (ranks, _) = producers(schedule), places(schedule)
    for step in measured[0][key][3].steps:
        start, end = np.full((2, schedule.num_codes), np.nan)
        for rank, order in enumerate(schedule.orders):
            start[order], end[order] = step.timeline.start[rank], step.timeline.end[rank]
        expected = {
            (int(needs[code]), int(ranks[needs[code]]), rank, start[code])
            for rank, order in enumerate(schedule.orders)
            for code in order.tolist()
            if needs[code] >= 0 and ranks[needs[code]] != rank
        }
        found = {(schedule.code(t.op), t.sender, t.reader, t.arrived) for t in step.transfers}
        assert found == expected
        assert len(step.transfers) == len(expected)
        for transfer in step.transfers:
            assert end[schedule.code(transfer.op)] <= transfer.sent <= transfer.arrived
            assert transfer.num_bytes == 2 * models.LENGTH * models.WIDTH * 4


def record_a_range(rank, schedule):
    """Record steps 2 and 3 of 5."""
    layers = models.built(models.transformer())
    pipe = Pipeline(layers, schedule, models.loss_fn, recorded_steps=range(2, 4))
    for _ in range(5):
        pipe.step(*models.tokens(2 * schedule.num_microbatches))
    return pipe.measured_run(Costs.uniform(schedule.num_stages, f=2))


def test_a_range_of_steps_is_recorded_beside_what_was_expected():
    schedule = SCHEDULES["zb-h1"]
    run, *others = values(launch(record_a_range, 3, schedule))
    assert [step.number for step in run.steps] == [2, 3]
    assert run.costs.forward.tolist() == [2.0] * 3
    assert all(step.timeline.costs is run.costs for step in run.steps)
    assert run.steps[0].timeline.makespan > 0
    assert others == [None, None]


def align(rank):
    """Take the same clock for another one, a second ahead for each rank."""
    name, now = f"clock {rank}", time.perf_counter_ns
    with (
        patch("zerobubble.runtime.clock._clock_name", lambda: name),
        patch("time.perf_counter_ns", lambda: now() + rank * 10**9),
    ):
        return clock_offset_ms(Transport(torch.device("cpu"), 3))


def test_clocks_of_different_machines_are_aligned_to_that_of_rank_0():
    assert values(launch(align, 3)) == [0, pytest.approx(1000, abs=400), pytest.approx(2000, abs=400)]
