"""Does a rank that is ahead go on while the last one is still at work?

The last rank stops in the middle until the first one has told it, through the store that the
processes share, that it is further on: with a barrier in between it would wait in vain.
"""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build

M = 4


def store():
    return dist.distributed_c10d._get_default_store()


def wait_for(key):
    store().wait([key], timedelta(seconds=20))


def step_while_the_last_rank_works(rank, num_ranks):
    """Keep the last rank in its last W until the first one has returned from its step."""
    layers = models.built(models.transformer(num_ranks))
    calls = []

    def stop_at_the_last(_):
        calls.append(rank)
        if len(calls) == M:
            wait_for("returned")

    if rank == num_ranks - 1:
        layers[-1].out.weight.register_post_accumulate_grad_hook(stop_at_the_last)
    pipe = Pipeline(layers, build("zb-h1", num_ranks, M), models.loss_fn, timeout=30)
    loss = float(pipe.step(*models.tokens(2 * M)))
    if rank == 0:
        store().set("returned", "")
    return loss, len(calls)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_first_rank_has_the_loss_while_the_last_is_in_its_last_w(num_ranks):
    found = values(launch(step_while_the_last_rank_works, num_ranks, num_ranks))
    assert len({loss for loss, _ in found}) == 1
    assert [calls for _, calls in found] == [0] * (num_ranks - 1) + [M]


def begin_the_next_step_before_the_norm_is_known(rank, num_ranks, name, spoils):
    """Keep the last rank out of its optimizer step until the first one has begun the next step."""
    schedule = build(name, num_ranks, M)
    layers = models.built(models.transformer(schedule.num_stages))
    pipe = Pipeline(layers, schedule, models.loss_fn, timeout=30)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=100.0, validate="post")
    last = schedule.placement.stage_to_rank[num_ranks - 1]
    pipe.step(*models.tokens(2 * M))
    if rank == last:
        wait_for("begun")
        if spoils:
            next(p for _, p in pipe.named_parameters()).grad.fill_(float("nan"))
    opt.step()
    if rank == 0:
        pipe.stages[0].module.register_forward_hook(lambda *_: store().set("begun", ""))
    pipe.step(*models.tokens(2 * M))
    return opt.num_validated, opt.num_replayed, opt.num_skipped


@pytest.mark.parametrize("spoils", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("name", ["zb-h2", "1f1b", "zb-v"])
def test_the_next_step_begins_before_the_last_rank_knows_the_norm(name, spoils):
    found = values(launch(begin_the_next_step_before_the_norm_is_known, 3, 3, name, spoils))
    assert found == [(0, 1, 1) if spoils else (1, 0, 0)] * 3
