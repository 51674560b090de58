"""Is the measured timeline the one that ran: its own schedule, without overlap, causes first?"""

import time

import numpy as np
import pytest

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build
from zerobubble.graph import producers
from zerobubble.ir import Kind


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
        found[key] = pipe.timelines(), pipe._recorder.steps_ms(), forwards
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
        _, steps, forwards = measured[rank][key]
        kinds, stages, _ = schedule.fields(order)
        for stage, noted in forwards.items():
            runs = np.array(noted).reshape(NUM_STEPS + 1, m, 2)[1:NUM_STEPS]  # the last is eval
            for (start, end), run in zip(steps, runs, strict=True):
                is_forward = (kinds == Kind.F) & (stages == stage)
                assert (start[is_forward] <= run[:, 0]).all()
                assert (run[:, 1] <= end[is_forward]).all()


@pytest.mark.parametrize("key", SCHEDULES)
def test_alignment_moves_each_rank_as_a_whole(key, measured):
    for step, timeline in enumerate(measured[0][key][0]):
        moved = []
        for rank in range(3):
            start, end = measured[rank][key][1][step]
            shift = timeline.start[rank] - start
            np.testing.assert_allclose(shift, shift[0], atol=1e-6)
            np.testing.assert_allclose(timeline.end[rank] - end, shift[0], atol=1e-6)
            moved.append(shift[0])
        # One clock runs for all three, so only half a round trip can set them apart.
        assert max(moved) - min(moved) < 1000
