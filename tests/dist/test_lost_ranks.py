"""Wherever a rank is killed, or busy for too long, do all others end soon and name that one?"""

import os
import random
import signal
import time

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import launch
from zerobubble import Pipeline, build
from zerobubble.runtime.trace import Recorder

M, NUM_STEPS = 6, 4
NAMES = ("1f1b", "zb-h1", "zb-h2", "zb-v", "gpipe")


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(rank, name, num_ranks, killed, moment, validate):
    """Train; the killed rank ends at a moment: before an op of all, or after an optimizer's step."""
    place, number = moment
    run, num_ops = Recorder.run, [0]

    def count(self, op):
        num_ops[0] += 1
        if (place, number, rank) == ("op", num_ops[0], killed):
            kill_this_process()
        run(self, op)

    Recorder.run = count
    layers = models.built(models.transformer(2 * num_ranks))
    tied = [("0.weight", f"{2 * num_ranks - 1}.out.weight")] if place == "tied" else ()
    pipe = Pipeline(layers, build(name, num_ranks, M), models.loss_fn, tied=tied)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, max_grad_norm=1e3, validate=validate)
    for step in range(NUM_STEPS):
        pipe.step(*models.tokens(2 * M, step))
        if (place, number, rank) == ("tied", step, killed):
            kill_this_process()
        opt.step()
        if (place, number, rank) == ("between", step, killed):
            kill_this_process()
    pipe.eval(*models.tokens(2 * M))
    return "finished"


def cases():
    """One kill that only the exchange of tied gradients can see, and twenty drawn by a seed."""
    yield "1f1b", 2, 1, ("tied", 1), "sync"
    draw = random.Random(6)
    for index in range(20):
        num_ranks = 3 + index % 2
        name = NAMES[index % len(NAMES)]
        killed = draw.randrange(num_ranks)
        num_ops = len(build(name, num_ranks, M).orders[killed])
        place = ("op", "op", "op", "between", "tied")[index // 4]
        number = draw.randrange(1, 3 * num_ops) if place == "op" else draw.randrange(NUM_STEPS - 1)
        yield name, num_ranks, killed, (place, number), ("post", "sync")[index // 2 % 2]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: "-".join(map(str, case)))
def test_a_rank_killed_anywhere_is_named_by_all_others_within_seconds(case):
    _, num_ranks, killed, *_ = case
    outcomes = launch(train_until_killed, num_ranks, *case, timeout=40)
    assert outcomes[killed].exit_code == -signal.SIGKILL
    for rank in set(range(num_ranks)) - {killed}:
        outcome = outcomes[rank]
        assert not outcome.timed_out
        assert outcome.seconds - outcomes[killed].seconds < 10
        assert outcome.error is not None, outcome.value
        assert outcome.error[0] == "PipelineError", outcome.traceback
        assert f"lost rank {killed}" in outcome.error[1], outcome.traceback
        assert "\n" not in outcome.error[1]


TIMEOUT_S = 3.0


class Slow(nn.Module):
    """Sleeps in one forward for longer than the others are ready to wait."""

    num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        if self.num_calls == M + 3:
            time.sleep(TIMEOUT_S + 2.5)
        return x


def train_slowly(rank, where):
    """Sleep on the last rank in F2 of the second step, or on the first between two steps."""
    layers = models.built(models.transformer(3))
    layers[2] = nn.Sequential(Slow() if where == "op" else nn.Identity(), layers[2])
    pipe = Pipeline(layers, build("zb-h1", 3, M), models.loss_fn, timeout=TIMEOUT_S)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1.0)
    for step in range(3):
        pipe.step(*models.tokens(2 * M))
        opt.step()
        if (rank, where, step) == (0, "between", 1):
            time.sleep(TIMEOUT_S + 2.5)
    return "finished"


@pytest.mark.parametrize(
    ("where", "slow", "work"),
    [("op", 2, "F2 of stage 2"), ("between", 0, "what comes between steps")],
)
def test_a_rank_that_takes_longer_than_the_timeout_is_named_with_its_work(where, slow, work):
    outcomes = launch(train_slowly, 3, where, timeout=40)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is not None, outcome.value
        assert outcome.error[0] == "PipelineError", outcome.traceback
        assert f"because of rank {slow} has been at {work} for " in outcome.error[1]
        assert outcome.error[1].endswith("longer than the timeout: make it faster, or raise it")
        if rank != slow:
            assert outcome.seconds < outcomes[slow].seconds - 1
