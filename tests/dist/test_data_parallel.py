"""Are the gradients of stages wrapped in DDP or FSDP2 those of the unwrapped stage?"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import zerobubble as zb
from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble.autograd import gradient_sync_at_end

NUM_RANKS, NUM_MICROBATCHES = 2, 3
NUM_DEFERRED = 9  # embedding, convolution, twice (qkv, out), up, down, head
SHARDED = {"keep": False, "reshard": True}


class Convolution(nn.Module):
    """Mixes neighbours; its W looks at the weight, which FSDP2 may have freed."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv1d(models.WIDTH, models.WIDTH, 3, padding=1)

    def forward(self, x):
        return x + self.inner(x.mT).mT


def unwrapped():
    embedding, *blocks = models.transformer(5)
    return nn.Sequential(*models.built([embedding, Convolution, *blocks]))


def wrapped(way):
    stage = unwrapped()
    if way == "ddp":
        return DistributedDataParallel(stage)
    if way in SHARDED:
        for layer in stage:
            fully_shard(layer, reshard_after_forward=SHARDED[way])
        fully_shard(stage, reshard_after_forward=SHARDED[way])
    return stage


def calls(rank, step):
    """Yield the arguments of every microbatch: each rank has its own."""
    for i in range(NUM_MICROBATCHES):
        x, _ = models.tokens(2, seed=100 * step + 10 * rank + i)
        yield x, torch.randn(2, models.LENGTH, models.VOCABULARY, generator=seeded(rank, i))


def seeded(rank, i):
    return torch.Generator().manual_seed(7 * rank + i)


def split_step(stage, rank, step, order):
    """Run F, B and W of all microbatches; return how many ops each left to W."""
    arguments, found, num_deferred = list(calls(rank, step)), {}, []
    for kind, i in order:
        x, dy = arguments[i]
        if kind == "F":
            found[i] = zb.splitting(stage)(x)
        elif kind == "B":
            found[i].backward_input(dy)
            num_deferred.append(len(found[i].queue))
        else:
            found[i].backward_weight()
    return num_deferred


ORDERS = {
    "W last": [*"F0 B0 F1 B1 F2 B2 W0 W1 W2".split()],
    "1F1B": [*"F0 F1 B0 F2 B1 W0 B2 W1 W2".split()],
}


def gradients(stage):
    return {
        name.removeprefix("module."): (
            p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        )
        .numpy()
        .copy()
        for name, p in stage.named_parameters()
    }


def work(rank, way, order):
    dist.init_process_group("gloo")
    stage = wrapped(way)
    order = [(op[0], int(op[1])) for op in ORDERS[order]]
    found = []
    for step in range(2):
        stage.zero_grad()
        with gradient_sync_at_end(stage):
            num_deferred = split_step(stage, rank, step, order)
        found.append(gradients(stage))
    stage.zero_grad()
    x, dy = next(calls(rank, 2))
    stage(x).backward(dy)
    found.append(gradients(stage))
    return num_deferred, found


def mean_of_ranks():
    """Compute the gradients of two steps, and of one microbatch more, without any wrapper."""
    means = []
    for step in range(3):
        of_ranks = []
        for rank in range(NUM_RANKS):
            stage = unwrapped()
            for x, dy in list(calls(rank, step))[: NUM_MICROBATCHES if step < 2 else 1]:
                stage(x).backward(dy)
            of_ranks.append(gradients(stage))
        means.append({key: sum(g[key] / NUM_RANKS for g in of_ranks) for key in of_ranks[0]})
    return means


@pytest.mark.timeout(120)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", ["ddp", *SHARDED])
def test_gradients_are_the_mean_of_the_unwrapped_ones(way, order):
    expected = mean_of_ranks()
    for num_deferred, found in values(launch(work, NUM_RANKS, way, order, timeout=40)):
        assert num_deferred == [NUM_DEFERRED] * NUM_MICROBATCHES
        for actual, wanted in zip(found, expected, strict=True):
            models.assert_same_bits(actual, wanted)


def work_in_main_grad(rank):
    dist.init_process_group("gloo")
    stage = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    with gradient_sync_at_end(stage):
        call = zb.splitting(stage, main_grad=True)(torch.full((1, 2), 2.0 + 2 * rank))
        call.backward_input(torch.ones(1, 1))
        call.backward_weight()
    weight = stage.module.weight
    return weight.grad is None, weight.main_grad.tolist()


@pytest.mark.timeout(120)
def test_ddp_averages_main_grad_too():
    for found in values(launch(work_in_main_grad, NUM_RANKS, timeout=40)):
        assert found == (True, [[3.0, 3.0]])


def work_in_main_grad_of_shards(rank):
    dist.init_process_group("gloo")
    stage = fully_shard(nn.Linear(2, 2, bias=False))
    with (
        pytest.raises(RuntimeError, match="parameter weight has its gradient in main_grad"),
        gradient_sync_at_end(stage),
    ):
        call = zb.splitting(stage, main_grad=True)(torch.ones(1, 2))
        call.backward_input(torch.ones(1, 2))
        call.backward_weight()


@pytest.mark.timeout(120)
def test_fsdp2_refuses_main_grad():
    values(launch(work_in_main_grad_of_shards, NUM_RANKS, timeout=40))
