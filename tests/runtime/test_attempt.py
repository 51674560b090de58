"""Does a step that was tried and then settled equal one taken once, and what does it keep?"""

import copy

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from zerobubble.runtime import attempt as attempt_module
from zerobubble.runtime.agreement import Verdict
from zerobubble.runtime.attempt import attempt, must_see_what_stands
from zerobubble.runtime.master_weights import Weights, build_weights

SHAPES = [(5, 3), (3,), (2, 2, 2), (7,)]
STANDS, CLIPPED, SKIPPED = (
    Verdict(1.0, 1.0, 1),
    Verdict(9.0, 0.25, 1),
    Verdict(float("inf"), 1.0, 1),
)
VERDICTS = [STANDS, CLIPPED, STANDS, SKIPPED, SKIPPED, CLIPPED, STANDS]
KERNELS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
LIGHT = {
    f"{name}-{kernel}": (optimizer, options | how)
    for name, optimizer, options in (
        ("adamw", torch.optim.AdamW, {"lr": 0.1}),
        ("adamw-amsgrad", torch.optim.AdamW, {"lr": 0.1, "amsgrad": True, "maximize": True}),
        ("adam", torch.optim.Adam, {"lr": torch.tensor(0.1), "weight_decay": 0.1}),
        ("sgd", torch.optim.SGD, {"lr": 0.1}),
        ("sgd-nesterov", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("sgd-dampening", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    )
    for kernel, how in KERNELS.items()
    if not (kernel == "foreach" and torch.is_tensor(options["lr"]))
}
SNAPSHOTS = {
    "radam": (torch.optim.RAdam, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "asgd": (torch.optim.ASGD, {"lr": 0.1}),
}


class OwnAdamW(torch.optim.AdamW):
    """A subclass may do anything, so that it goes by a snapshot."""


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    return [*made, nn.Parameter(torch.ones(2))]  # the last one never gets a gradient


def weights_of(optimizer, options, dtype=torch.float32, master_weights=False):
    named = {str(i): p for i, p in enumerate(parameters(dtype))}
    return build_weights(optimizer, named, options, master_weights), list(named.values())


def give_gradients(working, step):
    generator = torch.Generator().manual_seed(step)
    for p in working[:-1]:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def step_plainly(weights, verdict):
    owned = weights.collect_gradients()
    if verdict.is_finite:
        for p in owned:
            p.grad.mul_(verdict.factor)
        weights.inner.step()
        weights.round(owned)
    weights.drop_gradients()


def learned(weights, working):
    leaves = pytree.tree_leaves((weights.inner.state_dict(), working))
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for x, y in zip(actual, expected, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def compare(optimizer, options, **how):
    """Take steps with all verdicts in both ways; the learning rate changes while one is pending."""
    plain, plain_working = weights_of(optimizer, copy.deepcopy(options), **how)
    tried, tried_working = weights_of(optimizer, copy.deepcopy(options), **how)
    with torch.no_grad():
        for step, verdict in enumerate(VERDICTS):
            give_gradients(plain_working, step)
            step_plainly(plain, verdict)
            give_gradients(tried_working, step)
            begun = attempt(tried, tried.collect_gradients())
            assert all(p.grad is None for p in (*tried.owned, *tried_working))
            for weights in (plain, tried):
                weights.inner.param_groups[0]["lr"] *= 0.9
            versions = [p._version for p in tried_working]
            begun.end(verdict)
            if verdict is STANDS:
                assert [p._version for p in tried_working] == versions, "graphs hold these"
            assert_same(learned(tried, tried_working), learned(plain, plain_working))
    assert plain.inner.param_groups[0]["lr"] == tried.inner.param_groups[0]["lr"]


@pytest.mark.parametrize("bucket_bytes", [1, 2**20])
@pytest.mark.parametrize("key", LIGHT)
def test_a_settled_light_attempt_has_the_bits_of_one_step(key, bucket_bytes, monkeypatch):
    monkeypatch.setattr(attempt_module, "BUCKET_BYTES", bucket_bytes)
    compare(*LIGHT[key])


@pytest.mark.parametrize("key", [*SNAPSHOTS, "own"])
def test_a_settled_snapshot_has_the_bits_of_one_step(key):
    compare(*SNAPSHOTS.get(key, (OwnAdamW, {"lr": 0.1})))


@pytest.mark.parametrize("key", ["adamw-fused", "sgd-nesterov-foreach", "radam"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_end_with_the_bits_of_one_step(key, dtype):
    compare(*(LIGHT | SNAPSHOTS)[key], dtype=dtype, master_weights=True)


def test_muon_has_the_bits_of_one_step():
    matrices = [nn.Parameter(torch.randn(4, 4))]
    twins = [nn.Parameter(p.detach().clone()) for p in matrices]
    plain, tried = (Weights(torch.optim.Muon(ps, lr=0.1)) for ps in (matrices, twins))
    with torch.no_grad():
        for verdict in VERDICTS:
            gradient = torch.randn(4, 4)
            matrices[0].grad, twins[0].grad = gradient.clone(), gradient.clone()
            step_plainly(plain, verdict)
            attempt(tried, tried.collect_gradients()).end(verdict)
            assert_same(learned(tried, twins), learned(plain, matrices))


def num_bytes(tensors):
    return sum(x.nbytes for x in tensors)


@pytest.mark.parametrize("master_weights", [False, True])
def test_a_light_attempt_keeps_gradients_and_parameters_but_no_state(master_weights):
    dtype = torch.bfloat16 if master_weights else torch.float32
    weights, working = weights_of(torch.optim.AdamW, {"lr": 0.1}, dtype, master_weights)
    give_gradients(working, 0)
    with torch.no_grad():
        owned = weights.collect_gradients()
        begun = attempt(weights, owned)
    of_gradients = of_parameters = num_bytes(owned)
    assert num_bytes(begun.kept) == of_gradients + (0 if master_weights else of_parameters)
    assert not weights.inner.state, "authoritative state is untouched until the verdict"


def test_a_snapshot_keeps_parameters_state_and_gradients():
    weights, working = weights_of(torch.optim.RAdam, {"lr": 0.1})
    with torch.no_grad():
        for step in range(2):
            give_gradients(working, step)
            begun = attempt(weights, weights.collect_gradients())
    of_gradients = num_bytes(p for p in working[:-1])
    of_state = 2 * of_gradients + 4 * len(SHAPES)  # two moments, and a count for each parameter
    assert num_bytes(begun.kept) == num_bytes(working) + of_state + of_gradients


def test_hooks_on_step_are_noticed():
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert not must_see_what_stands(inner)
    handle = inner.register_step_post_hook(lambda *_: None)
    assert must_see_what_stands(inner)
    handle.remove()
    assert not must_see_what_stands(inner)


def test_a_step_of_the_users_own_is_noticed_but_not_that_of_a_scheduler():
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
    assert not must_see_what_stands(inner)
    inner.step = lambda: None
    assert must_see_what_stands(inner)


def test_a_scheduler_sees_the_step_of_an_attempt(recwarn):
    weights, working = weights_of(torch.optim.AdamW, {"lr": 0.1})
    scheduler = torch.optim.lr_scheduler.ExponentialLR(weights.inner, 0.5)
    give_gradients(working, 0)
    with torch.no_grad():
        begun = attempt(weights, weights.collect_gradients())
    scheduler.step()
    assert not recwarn.list
    begun.commit()
    assert weights.inner.param_groups[0]["lr"] == 0.05
