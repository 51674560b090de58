"""Does a schedule found for measured times take over on all ranks, with the same bits?"""

import numpy as np
import pytest
import torch

from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble import Costs, Pipeline, build, simulate
from zerobubble.formats.json import dumps
from zerobubble.runtime.replanning import replan
from zerobubble.runtime.trace import measured_costs

M, NUM_STEPS = 6, 5
MEASURED = Costs(*np.array([[10, 12], [11, 16], [9, 13], [1, 0], [3, 4], [2, 3]], dtype=float))


def train(rank, schedule, costs, validate, replans):
    """Replan after two steps, as if the ops had taken ``costs``."""
    pipe = Pipeline(models.transformer(8), schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, max_grad_norm=0.77, validate=validate)
    losses, found = [], None
    for step in range(NUM_STEPS):
        losses.append(pipe.step(*models.tokens(2 * M, step)).item())
        opt.step()
        if step == 1 and replans:
            really_measured = pipe.timelines()
            assert (len(really_measured) == 1) == (rank == 0)
            timelines = [simulate(pipe.schedule, costs)] if rank == 0 else []
            pipe.timelines = lambda timelines=timelines: timelines
            found = replan(pipe, costs, memory=[8.0] * schedule.num_ranks)
            assert (found is None) == (rank > 0)
    opt.synchronize()
    spans = found and (found.before.span, found.after.span, found.after.peak_memory_per_rank)
    state = {name: value.numpy().copy() for name, value in pipe.state_dict().items()}
    return losses, state, dumps(pipe.schedule), spans


@pytest.mark.parametrize("validate", ["post", "sync"])
def test_a_faster_order_takes_over(validate):
    start = build("1f1b", 2, M)
    plain = values(launch(train, 2, start, MEASURED, "sync", False))
    replanned = values(launch(train, 2, start, MEASURED, validate, True))
    for (losses, state, _, _), (their_losses, theirs, _, _) in zip(plain, replanned, strict=True):
        assert losses == their_losses
        assert all((state[name] == theirs[name]).all() for name in state)
    (_, _, schedule, (before, after, peaks)), (_, _, other, _) = replanned
    assert schedule == other != dumps(start)
    assert before == simulate(start, MEASURED).span
    assert after < before
    assert max(peaks) <= 8


def test_the_order_stays_where_none_is_faster():
    """Equal ops of one rank leave nothing to gain."""
    start = build("zb-h2", 1, M)
    (_, _, schedule, (before, after, _)), = values(
        launch(train, 1, start, Costs.uniform(1, f=2, b=2, w=2), "post", True)
    )  # fmt: skip
    assert schedule == dumps(start)
    assert before == after == 6 * M


def replan_before_any_step(rank):
    pipe = Pipeline(models.transformer(4), build("1f1b", 2, M), models.loss_fn)
    return replan(pipe), pipe.schedule.name


def test_without_a_recorded_step_nothing_happens():
    assert values(launch(replan_before_any_step, 2)) == [(None, "1f1b")] * 2


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "gpipe"])
def test_measured_costs_are_those_that_the_ops_took(name):
    timeline = simulate(build(name, 2, M), MEASURED)
    measured = measured_costs([timeline], MEASURED).to_dict()
    assert measured == {key: pytest.approx(each) for key, each in MEASURED.to_dict().items()}
    halves = measured_costs([timeline, timeline])
    together = halves.backward_input + halves.backward_weight
    assert together == pytest.approx(MEASURED.backward_input + MEASURED.backward_weight)
