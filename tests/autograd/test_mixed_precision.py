"""Does training with autocast and a loss scaler give the same bits with a split backward?"""

import pytest
import torch
from case import hidden
from split_cases import Checkpointed
from torch import nn

import zerobubble as zb

NUM_STEPS, NUM_MICROBATCHES = 5, 2


def _loss(model, x, dtype):
    with torch.autocast("cpu", dtype):
        return model(x).float().square().mean() / NUM_MICROBATCHES


def _backward_plain(model, inputs, scaler, dtype):
    for x in inputs:
        scaler.scale(_loss(model, x, dtype)).backward()


def _backward_split(model, inputs, scaler, dtype):
    run = zb.splitting(lambda x: scaler.scale(_loss(model, x, dtype)))
    calls = [run(x) for x in inputs]
    for call in calls:
        call.backward_input()
    for call in calls:
        call.backward_weight()


def _train(backward, dtype, use_reentrant, first_scale):
    """Train for a few steps; return the parameters, the scales and which steps were taken."""
    torch.manual_seed(0)
    model = Checkpointed(dropout=0.1, use_reentrant=use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale, growth_interval=2)
    scales, taken = [], []
    for _ in range(NUM_STEPS):
        inputs = [hidden()[0].requires_grad_() for _ in range(NUM_MICROBATCHES)]
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        with torch.random.fork_rng():
            backward(model, inputs, scaler, dtype)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        now = list(model.parameters())
        taken.append(not all(torch.equal(a, b) for a, b in zip(before, now, strict=True)))
    return [p.detach() for p in model.parameters()], scales, taken


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_is_bitwise_that_of_a_plain_backward(dtype, use_reentrant):
    # The recomputation of a microbatch draws nothing anew, so F of all may come before B.
    plain, split = (
        _train(backward, dtype, use_reentrant, 2.0**10)
        for backward in (_backward_plain, _backward_split)
    )
    assert split[1:] == plain[1:]
    assert split[2] == [True] * NUM_STEPS
    assert split[1][-1] == 2.0**12
    assert all(torch.equal(a, b) for a, b in zip(split[0], plain[0], strict=True))


def test_steps_that_overflow_in_float16_are_skipped():
    plain, split = (
        _train(backward, torch.float16, False, 2.0**20)
        for backward in (_backward_plain, _backward_split)
    )
    assert split[1:] == plain[1:]
    assert split[2] == [False, True, True, False, True]
    assert all(torch.equal(a, b) for a, b in zip(split[0], plain[0], strict=True))
