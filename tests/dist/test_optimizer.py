"""Do all ranks clip, skip and step as one process would?"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build

NUM_MICROBATCHES = 4


def pipeline(num_ranks, **options):
    schedule = build("zb-h1", num_ranks, NUM_MICROBATCHES)
    return Pipeline(models.built(models.transformer()), schedule, models.loss_fn, **options)


def spoil_and_step(rank, num_ranks, bad_values):
    """Put a bad value into one gradient of one rank after the other, then step once unspoilt."""
    pipe = pipeline(num_ranks)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, max_grad_norm=1.0)
    before = models.parameters(pipe.named_parameters())
    states = []
    for spoilt in range(num_ranks):
        for bad in bad_values:
            pipe.step(*models.tokens(8))
            if rank == spoilt:
                parameters = [p for _, p in pipe.named_parameters()]
                parameters[-1].grad.view(-1)[0] = bad
            opt.step()
            assert all(p.grad is None for _, p in pipe.named_parameters())
            unchanged = models.parameters(pipe.named_parameters())
            models.assert_same_bits(unchanged, before)
            assert not opt.inner.state, "a skipped step must not reach the optimizer's moments"
            states.append((opt.num_steps, opt.num_skipped, opt.num_clipped, opt.grad_norm))
    pipe.step(*models.tokens(8))
    opt.step()
    changed = models.parameters(pipe.named_parameters())
    assert all((changed[name] != before[name]).any() for name in before)
    return states, (opt.num_steps, opt.num_skipped)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_an_inf_or_nan_on_any_rank_skips_the_step_on_all(num_ranks):
    bad_values = (float("inf"), float("nan"), float("-inf"))
    num_bad = num_ranks * len(bad_values)
    for states, last in values(launch(spoil_and_step, num_ranks, num_ranks, bad_values)):
        assert [state[:3] for state in states] == [(i, i, 0) for i in range(1, num_bad + 1)]
        assert not np.isfinite([state[3] for state in states]).any()
        assert last == (num_bad + 1, num_bad)


def clip_once(rank, num_ranks, max_grad_norm, tied):
    pipe = pipeline(num_ranks, tied=tied)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.5, max_grad_norm=max_grad_norm)
    pipe.step(*models.tokens(8))
    opt.step()
    return opt.grad_norm, opt.num_clipped, models.parameters(pipe.named_parameters())


def clip_plain(rank, max_grad_norm, tied):
    model = nn.Sequential(*models.built(models.transformer()))
    if tied:
        model[-1].out.weight = model[0].weight
    models.plain_step(model, *models.tokens(8), NUM_MICROBATCHES)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm or float("inf"))
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return float(norm), models.parameters(model.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize("tied", [(), (("0.weight", "6.out.weight"),)], ids=["untied", "tied"])
@pytest.mark.parametrize("max_grad_norm", [0.1, 100.0, None])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_norm_and_clipped_step_equal_those_of_one_process(num_ranks, max_grad_norm, tied):
    expected_norm, expected = values(launch(clip_plain, 1, max_grad_norm, tied))[0]
    of_ranks = values(launch(clip_once, num_ranks, num_ranks, max_grad_norm, tied))
    assert len({norm for norm, _, _ in of_ranks}) == 1
    assert of_ranks[0][0] == pytest.approx(expected_norm, rel=1e-6)
    assert {clipped for _, clipped, _ in of_ranks} == {int(max_grad_norm == 0.1)}
    actual = models.merged([part for _, _, part in of_ranks])
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    if tied:
        assert actual["0.weight"].tobytes() == actual["6.out.weight"].tobytes()


def train_with_a_frozen_rank(rank, num_ranks):
    """Clip while the last rank holds nothing to train."""
    layers = models.built(models.transformer())
    layers[-1].requires_grad_(False)
    schedule = build("zb-h1", num_ranks, NUM_MICROBATCHES)
    pipe = Pipeline(layers, schedule, models.loss_fn, layers_per_stage=(3, 3, 1))
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=0.01)
    pipe.step(*models.tokens(8))
    opt.step()
    return opt.num_clipped, opt.grad_norm, len(opt.param_groups)


def test_a_rank_with_nothing_to_train_clips_along():
    found = values(launch(train_with_a_frozen_rank, 3, 3))
    assert [clipped for clipped, _, _ in found] == [1, 1, 1]
    assert found[0][1] == found[1][1] == found[2][1] > 0.01
    assert [num_groups for _, _, num_groups in found] == [1, 1, 0]


def train_tied(rank, num_ranks, num_optimizers, validate):
    """Step tied weights and the biases with one optimizer, or with one for each."""
    layers = models.built([lambda: nn.Linear(8, 8)] * 4)
    ends = [("0.weight", "3.weight")]
    schedule = build("zb-h1", num_ranks, NUM_MICROBATCHES)
    pipe = Pipeline(layers, schedule, nn.functional.mse_loss, tied=ends)
    named = list(pipe.named_parameters())
    parts = [[p for n, p in named if n.endswith(kind)] for kind in ("bias", "weight")]
    if num_optimizers == 1:
        parts = [sum(parts, [])]
    optimizers = [pipe.optimizer(torch.optim.SGD(part, lr=0.1), validate=validate) for part in parts]
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        pipe.step(x, x.flip(1))
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.synchronize()
    return models.parameters(named)


@pytest.mark.parametrize("validate", ["sync", "post"])
def test_two_optimizers_step_tied_parameters_as_one_does(validate):
    one, two = (
        models.merged(values(launch(train_tied, 2, 2, number, validate))) for number in (1, 2)
    )
    models.assert_same_bits(one, two)


class Rows(nn.Module):
    """Adds the first rows of a table."""

    def __init__(self, is_sparse):
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=is_sparse)

    def forward(self, x):
        return x + self.table(torch.arange(len(x)))


def train_tied_rows(rank, is_sparse):
    layers = models.built([lambda: nn.Embedding(8, 4, sparse=is_sparse), lambda: Rows(is_sparse)])
    ends = [("0.weight", "1.table.weight")]
    pipe = Pipeline(layers, build("zb-h1", 2, 4), nn.functional.mse_loss, tied=ends)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1)
    for _ in range(2):
        pipe.step(torch.arange(8), torch.ones(8, 4))
        opt.step()
    return models.parameters(pipe.named_parameters())


def test_tied_parameters_with_sparse_gradients_step_as_with_dense_ones():
    sparse, dense = (
        models.merged(values(launch(train_tied_rows, 2, is_sparse))) for is_sparse in (True, False)
    )
    models.assert_same_bits(sparse, dense)


SCRIPT = """
import time, torch
from zerobubble import Pipeline, build

layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
pipe = Pipeline(layers, build("zb-h2", 2, 4), torch.nn.functional.mse_loss)
opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1e3, validate="post")
pipe.step(torch.ones(4, 4), torch.zeros(4, 4))
time.sleep(2 * pipe.rank)
opt.step()
print("pending", opt.is_pending)
"""


def test_a_script_that_forgets_to_synchronize_ends_well_on_every_rank():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert [out.strip() for out, _ in told] == ["pending True"] * 2
