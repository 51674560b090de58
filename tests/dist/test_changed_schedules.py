"""Does a run keep its bits when another schedule takes over between two steps?"""

import pytest
import torch

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import attempt, launch, values
from zerobubble import Pipeline, build

M, NUM_STEPS = 4, 7
# Clips some of the steps, so that forwards of a new schedule are refuted and run again.
MAX_NORM = 0.77
RUNS = {
    "linear": [build(name, 2, M) for name in ("zb-h1", "1f1b", "gpipe", "zb-h2", "zb-h1")],
    "v": [build("zb-v", 2, M), *(placed(2, "v", M, seed) for seed in range(4))],
    "three-ranks": [build(name, 3, M) for name in ("1f1b", "zb-h2", "zb-h1")],
}


def train(rank, schedules, validate):
    pipe = Pipeline(models.transformer(8), schedules[0], models.loss_fn, num_recorded_steps=4)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, max_grad_norm=MAX_NORM, validate=validate)
    losses, recorded = [], []
    for step in range(NUM_STEPS):
        if step:
            pipe.change_schedule(schedules[step % len(schedules)])
        losses.append(pipe.step(*models.tokens(2 * M, step)).item())
        opt.step()
        losses.append(pipe.eval(*models.tokens(2 * M, 99)).item() if step % 3 == 2 else None)
        recorded.append([(t.schedule, len(t.start)) for t in pipe.timelines()])
    opt.synchronize()
    assert pipe.schedule is schedules[(NUM_STEPS - 1) % len(schedules)]
    if rank == 0:
        assert [len(each) for each in recorded] == [1] * NUM_STEPS, "of the schedule that runs"
    state = {name: value.numpy().copy() for name, value in pipe.state_dict().items()}
    return losses, opt.num_clipped, state


@pytest.mark.parametrize("key", RUNS)
def test_losses_and_parameters_keep_their_bits(key):
    schedules = RUNS[key]
    fixed = values(launch(train, schedules[0].num_ranks, schedules[:1], "sync"))
    changing = values(launch(train, schedules[0].num_ranks, schedules, "post"))
    for (losses, clipped, state), (their_losses, their_clipped, theirs) in zip(fixed, changing, strict=True):
        assert 0 < clipped < NUM_STEPS
        assert (losses, clipped) == (their_losses, their_clipped)
        assert state.keys() == theirs.keys()
        assert all((state[name] == theirs[name]).all() for name in state)


def change_wrongly(rank):
    pipe = Pipeline(models.transformer(4), build("zb-h1", 2, M), models.loss_fn)
    errors = [
        attempt(pipe.change_schedule, wrong)
        for wrong in ("zb-h2", build("zb-v", 2, M), placed(2, "crowded", M))
    ]
    pipe.step(*models.tokens(2 * M))
    return errors, pipe.schedule.name


def test_another_placement_is_refused_and_the_schedule_stays():
    for errors, name in values(launch(change_wrongly, 2)):
        assert [kind for kind, _ in errors] == ["UsageError"] * 3
        assert "must be a Schedule, not 'zb-h2'" in errors[0][1]
        assert "the stages are placed as linear, but the new schedule wants v" in errors[1][1]
        assert name == "zb-h1"


def change_on_one_rank(rank):
    pipe = Pipeline(models.transformer(4), build("zb-h1", 2, M), models.loss_fn)
    pipe.change_schedule(build("zb-h2" if rank else "1f1b", 2, M))
    return attempt(pipe.step, *models.tokens(2 * M))


def test_ranks_that_change_to_different_schedules_are_told():
    (_, _), (kind, message) = values(launch(change_on_one_rank, 2, timeout=60))
    assert kind in ("UsageError", "PipelineError")
    assert "all ranks must be given the same schedule" in message
