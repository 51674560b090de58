"""When one rank fails, do all end within seconds and say which rank it was, and why?"""

import os
import signal

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import attempt, launch
from zerobubble import Pipeline, build

FAILING_STAGE, FAILING_STEP = 1, 3


class Fuse(nn.Module):
    """Passes its input on until it is lit; then fails where it is told to."""

    def __init__(self, where, fail):
        super().__init__()
        self.where, self.fail = where, fail
        self.is_lit = False

    def forward(self, x):
        if not self.is_lit:
            return x
        if self.where == "forward":
            self.fail()
        return _FailingBackward.apply(x, self.fail)


class _FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.fail()
        return dy, None


def raise_error():
    raise ArithmeticError("the fuse blew\nand a second line")


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def train(rank, schedule, where, fail):
    """Train for more steps than the fuse allows; its stage comes second."""
    blocks = models.built(models.transformer(schedule.num_stages))
    fuse = Fuse(where, fail)
    blocks[FAILING_STAGE] = nn.Sequential(blocks[FAILING_STAGE], fuse)
    pipe = Pipeline(blocks, schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1.0)
    x, y = models.tokens(2 * schedule.num_microbatches)
    for step in range(1, FAILING_STEP + 2):
        fuse.is_lit = step == FAILING_STEP
        pipe.step(x, y)
        opt.step()
    return "finished"


def assert_all_ended_soon(outcomes):
    assert not any(outcome.timed_out for outcome in outcomes)
    ends = [outcome.seconds for outcome in outcomes]
    assert max(ends) - min(ends) < 10


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_layer_that_raises_stops_all_ranks_with_its_name_and_error(num_ranks, where, name):
    schedule = build(name, num_ranks, 4)
    outcomes = launch(train, num_ranks, schedule, where, raise_error)
    assert_all_ended_soon(outcomes)
    assert [outcome.exit_code for outcome in outcomes] == [1] * num_ranks
    kind = "F" if where == "forward" else {"1f1b": "BW", "zb-h1": "B"}[name]
    cause = f"rank 1, {kind}0 of stage 1, step 3: ArithmeticError: the fuse blew"
    assert outcomes[1].error == ("PipelineError", cause)
    for rank in set(range(num_ranks)) - {1}:
        error, message = outcomes[rank].error
        assert error == "PipelineError", outcomes[rank].traceback
        assert message.startswith(f"rank {rank}, ")
        assert message.endswith(f"stopped, because of {cause}")


def test_a_rank_that_fails_in_the_last_op_of_a_step_is_named_by_ranks_that_have_finished():
    schedule = build("1f1b", 3, 1)
    outcomes = launch(train, 3, schedule, "backward", raise_error)
    assert_all_ended_soon(outcomes)
    cause = "rank 1, BW0 of stage 1, step 3: ArithmeticError: the fuse blew"
    name, message = outcomes[2].error
    assert name == "PipelineError", outcomes[2].traceback
    assert message == f"rank 2, optimizer step 3: stopped, because of {cause}"


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_killed_process_stops_all_ranks_which_name_it(num_ranks):
    schedule = build("zb-h1", num_ranks, 4)
    outcomes = launch(train, num_ranks, schedule, "backward", kill_this_process)
    assert_all_ended_soon(outcomes)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in set(range(num_ranks)) - {1}:
        error, message = outcomes[rank].error
        assert error == "PipelineError", outcomes[rank].traceback
        assert "lost rank 1 at" in message
        assert "step 3" in message
        assert outcomes[rank].exit_code == 1


def fail_between(rank, num_ranks):
    """End one rank after its step, before it can tell its gradient norm."""
    schedule = build("zb-h1", num_ranks, 4)
    pipe = Pipeline(models.built(models.transformer(num_ranks)), schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1)
    pipe.step(*models.tokens(8))
    if rank == 1:
        raise ArithmeticError("user code between the steps")
    opt.step()


def test_a_rank_that_ends_between_step_and_optimizer_stops_the_others():
    outcomes = launch(fail_between, 3, 3)
    assert_all_ended_soon(outcomes)
    assert outcomes[1].error == ("ArithmeticError", "user code between the steps")
    for rank in (0, 2):
        error, message = outcomes[rank].error
        assert error == "PipelineError", outcomes[rank].traceback
        assert message.startswith(f"rank {rank}, optimizer step 1: stopped, because of rank ")
        assert "lost rank 1, optimizer step 1: " in message


def end_while_a_guess_is_pending(rank, num_ranks):
    """Kill one rank after it has stepped on a guess."""
    schedule = build("zb-h2", num_ranks, 4)
    pipe = Pipeline(models.built(models.transformer(num_ranks)), schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.1, max_grad_norm=1e3, validate="post")
    for step in range(1, 4):
        pipe.step(*models.tokens(8))
        opt.step()
        assert opt.is_pending
        if rank == 1 and step == 2:
            kill_this_process()


def synchronize_after_a_loss(rank, num_ranks):
    """Kill a rank before it takes part in the step; the others try twice to settle it."""
    pipe = Pipeline(
        models.built(models.transformer(num_ranks)), build("zb-h2", num_ranks, 4), models.loss_fn
    )
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.1, max_grad_norm=1e3, validate="post")
    pipe.step(*models.tokens(8))
    if rank == num_ranks - 1:
        kill_this_process()
    return [attempt(call) for call in (opt.step, opt.synchronize, opt.synchronize)]


def test_a_step_that_a_lost_rank_left_unsettled_stays_so_with_its_name():
    first, second, _ = launch(synchronize_after_a_loss, 3, 3)
    for outcome in (first, second):
        for name, message in filter(None, outcome.value):
            assert name == "PipelineError"
            assert "lost rank 2" in message
        assert outcome.value[-1] is not None


@pytest.mark.parametrize("num_ranks", [3, 4])
def test_a_rank_killed_while_a_guess_is_pending_stops_the_others_which_name_it(num_ranks):
    outcomes = launch(end_while_a_guess_is_pending, num_ranks, num_ranks)
    assert_all_ended_soon(outcomes)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in set(range(num_ranks)) - {1}:
        error, message = outcomes[rank].error
        assert error == "PipelineError", outcomes[rank].traceback
        assert "lost rank 1" in message


def train_with_a_bad_batch(rank, num_ranks):
    """Give the first rank a batch at step 2 that cannot be split."""
    pipe = Pipeline(
        models.built(models.transformer(num_ranks)), build("1f1b", num_ranks, 4), models.loss_fn
    )
    x, y = models.tokens(8)
    pipe.step(x, y)
    pipe.step(x[:3] if rank == 0 else x, y)


def test_a_bad_batch_on_one_rank_is_named_by_the_others():
    outcomes = launch(train_with_a_bad_batch, 3, 3)
    assert_all_ended_soon(outcomes)
    assert [outcome.error[0] for outcome in outcomes] == ["UsageError"] + 2 * ["PipelineError"]
    cause = outcomes[0].error[1]
    assert cause.startswith("a batch with 3 samples cannot be split into 4 microbatches: give")
    for rank in (1, 2):
        assert outcomes[rank].error[1] == (
            f"rank {rank}, start of step 2: stopped, because of "
            f"rank 0, start of step 2: UsageError: {cause}"
        )
