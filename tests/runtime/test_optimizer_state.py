"""Does state in host memory step to the same bits, with at most two buckets on the device?"""

import copy
import time

import pytest
import torch
from torch import nn

from tests.runtime.test_attempt import (
    LIGHT,
    STANDS,
    VERDICTS,
    assert_same,
    give_gradients,
    learned,
    step_plainly,
    weights_of,
)
from zerobubble.errors import UsageError
from zerobubble.runtime import attempt as attempt_module
from zerobubble.runtime import optimizer_state
from zerobubble.runtime.attempt import attempt, must_be_steppable_in_buckets, step_in_buckets
from zerobubble.runtime.master_weights import Weights

ADAMW = torch.optim.AdamW, {"lr": 0.1}


def offloaded(optimizer, options, **how):
    weights, working = weights_of(optimizer, copy.deepcopy(options), **how)
    weights.offload_state()
    return weights, working


def take(weights, working, step, verdict, way):
    """Take one step, at once or by an attempt that is settled."""
    give_gradients(working, step)
    owned = weights.collect_gradients()
    if way == "post":
        attempt(weights, owned).end(verdict)
        return
    if verdict.is_finite:
        for p in owned:
            p.grad.mul_(verdict.factor)
        step_in_buckets(weights)
        weights.round(owned)
    weights.drop_gradients()


@pytest.fixture(params=[1, 40, 2**20], ids=lambda n: f"buckets of {n} bytes")
def bucket_bytes(request, monkeypatch):
    monkeypatch.setattr(attempt_module, "BUCKET_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("way", ["post", "sync"])
@pytest.mark.parametrize("key", LIGHT)
@torch.no_grad()
def test_every_step_has_the_bits_of_one_with_resident_state(key, way, bucket_bytes):
    plain, plain_working = weights_of(LIGHT[key][0], copy.deepcopy(LIGHT[key][1]))
    weights, working = offloaded(*LIGHT[key])
    for step, verdict in enumerate(VERDICTS):
        give_gradients(plain_working, step)
        step_plainly(plain, verdict)
        take(weights, working, step, verdict, way)
        weights.state.finish()
        assert_same(learned(weights, working), learned(plain, plain_working))


@pytest.mark.parametrize("way", ["post", "sync"])
@torch.no_grad()
def test_master_weights_have_the_bits_of_resident_state(way):
    how = {"dtype": torch.bfloat16, "master_weights": True}
    plain, plain_working = weights_of(*ADAMW, **how)
    weights, working = offloaded(*ADAMW, **how)
    for step, verdict in enumerate(VERDICTS):
        give_gradients(plain_working, step)
        step_plainly(plain, verdict)
        take(weights, working, step, verdict, way)
    weights.state.finish()
    assert_same(learned(weights, working), learned(plain, plain_working))


NUM_PARAMETERS, NUM_VALUES = 8, 1000


def step_large(weights, way):
    """Take a step of parameters that make a bucket each."""
    for p in weights.owned:
        p.grad = torch.randn_like(p)
    if way == "post":
        attempt(weights, weights.collect_gradients()).end(STANDS)
    else:
        step_in_buckets(weights)


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize("way", ["post", "sync"])
@torch.no_grad()
def test_at_most_two_buckets_of_state_are_on_the_device(way, num_steps, monkeypatch):
    copy_fast = optimizer_state._copy

    def copy_slowly(copies):  # so that more would pile up if nothing waited
        time.sleep(0.01)
        copy_fast(copies)

    monkeypatch.setattr(optimizer_state, "_copy", copy_slowly)
    monkeypatch.setattr(attempt_module, "BUCKET_BYTES", 4 * NUM_VALUES)
    parameters = [nn.Parameter(torch.randn(NUM_VALUES)) for _ in range(NUM_PARAMETERS)]
    weights = Weights(torch.optim.AdamW(parameters, lr=0.1))
    weights.offload_state()
    for _ in range(num_steps):
        step_large(weights, way)
    weights.state.finish()
    of_bucket, on_device = 2 * 4 * NUM_VALUES, weights.state.on_device  # two moments
    assert weights.state.host_bytes == NUM_PARAMETERS * of_bucket
    # What the first step makes goes at once, so that there is one bucket only.
    assert on_device.peak_bytes == (1 if num_steps == 1 else 2) * of_bucket
    assert on_device.live_bytes() == 0


@pytest.mark.parametrize("key", ["adamw-fused", "adamw-amsgrad-foreach", "sgd-nesterov-for-loop"])
@pytest.mark.parametrize("loads_into_host", [False, True])
@torch.no_grad()
def test_state_of_one_kind_goes_on_in_the_other(key, loads_into_host):
    make = weights_of, offloaded
    optimizer, options = LIGHT[key]
    (first, working), (reference, its_working) = (
        build(optimizer, copy.deepcopy(options))
        for build in (make[not loads_into_host], weights_of)
    )
    for step in range(3):
        take(first, working, step, STANDS, "post")
        take(reference, its_working, step, STANDS, "post")
    first.state.finish()
    saved = copy.deepcopy(first.inner.state_dict())
    second, its_own = make[loads_into_host](optimizer, copy.deepcopy(options))
    take(second, its_own, 7, STANDS, "post")  # there is something else before
    for p, value in zip(its_own, working, strict=True):
        p.copy_(value)
    given = copy.deepcopy(saved)
    second.state.load(given)
    for step in range(3, 6):
        take(second, its_own, step, STANDS, "post")
        take(reference, its_working, step, STANDS, "post")
    second.state.finish()
    assert_same(learned(second, its_own), learned(reference, its_working))
    if loads_into_host:
        assert str(given) == str(saved), "what was loaded is the caller's"


@torch.no_grad()
def test_an_optimizer_that_has_stepped_takes_its_state_along():
    plain, plain_working = weights_of(*ADAMW)
    weights, working = weights_of(*ADAMW)
    for step in range(4):
        take(plain, plain_working, step, STANDS, "sync")
        take(weights, working, step, STANDS, "sync")
        if step == 1:
            weights.offload_state()
    weights.state.finish()
    assert_same(learned(weights, working), learned(plain, plain_working))


@torch.no_grad()
def test_a_scheduler_sees_the_steps(recwarn):
    weights, working = offloaded(*ADAMW)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(weights.inner, 0.5)
    take(weights, working, 0, STANDS, "sync")
    scheduler.step()
    assert not recwarn.list


@torch.no_grad()
def test_a_copy_that_fails_is_told_at_the_end(monkeypatch):
    weights, working = offloaded(*ADAMW)
    take(weights, working, 0, STANDS, "sync")

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(optimizer_state, "_copy", fail)
    take(weights, working, 1, STANDS, "sync")
    with pytest.raises(MemoryError, match="no room"):
        weights.state.finish()


def test_other_optimizers_are_refused():
    inner = torch.optim.RAdam([nn.Parameter(torch.ones(1))])
    with pytest.raises(UsageError, match="works with AdamW, Adam and SGD, not with RAdam"):
        must_be_steppable_in_buckets(inner)


def test_hooks_on_step_are_refused():
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    inner.register_step_post_hook(lambda *_: None)
    with pytest.raises(UsageError, match="has hooks on step, or another step: remove them"):
        must_be_steppable_in_buckets(inner)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["foreach", "fused"])
@torch.no_grad()
def test_a_cuda_device_steps_pinned_state_to_the_same_bits(options, monkeypatch):
    monkeypatch.setattr(attempt_module, "BUCKET_BYTES", 4 * NUM_VALUES)
    values = torch.randn(NUM_PARAMETERS, NUM_VALUES, device="cuda")
    plain, host = (
        Weights(torch.optim.AdamW([nn.Parameter(v.clone()) for v in values], lr=0.1, **options))
        for _ in range(2)
    )
    host.offload_state()
    for weights in (plain, host):
        torch.manual_seed(1)
        for way in ("sync", "post", "post"):
            step_large(weights, way)
    host.state.finish()
    assert all(map(torch.equal, host.owned, plain.owned))
    assert all(s["exp_avg"].is_pinned() for s in host.inner.state.values())
    assert host.state.on_device.peak_bytes <= 2 * 2 * 4 * NUM_VALUES


def test_the_host_waits_for_copies_outside_steps(monkeypatch):
    """As nothing else makes it wait, before ``state_dict`` reads what lies in pinned memory."""
    copies, copy_ = [], torch.Tensor.copy_

    def noted(self, source, non_blocking=False):
        copies.append(non_blocking)
        return copy_(self, source, non_blocking)

    inner = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    inner.param_groups[0]["params"][0].grad = torch.ones(3)
    inner.step()
    saved = copy.deepcopy(inner.state_dict())
    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    state = optimizer_state.HostState(inner)
    assert copies == [False] * 2
    state.load(saved)
    assert copies == [False] * 4
