"""Does a pipeline that computes norms, activations and dropout again keep less, with the same bits?"""

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import attempt, launch, values
from zerobubble import Pipeline, build

NUM_STEPS, NUM_MICROBATCHES, NUM_LAYERS = 2, 4, 8
SCHEDULES = {1: ("zb-h1", "1f1b"), 2: ("zb-h1", "1f1b", "zb-v")}


class DroppedMLP(models.MLP):
    def forward(self, x):
        hidden = nn.functional.dropout(nn.functional.gelu(self.up(self.norm(x))), 0.2, self.training)
        return x + nn.functional.dropout(self.down(hidden), 0.2, self.training)


def layers():
    return [DroppedMLP if layer is models.MLP else layer for layer in models.transformer(NUM_LAYERS)]


def train(rank, schedules):
    """Train with and without; give losses, last gradients, parameters and the peak of activations."""
    return {
        (name, autocast, recompute): train_one(schedule, autocast, recompute)
        for name, schedule in schedules.items()
        for autocast in (None, torch.bfloat16)
        for recompute in ("off", "light")
    }


def train_one(schedule, autocast, recompute):
    pipe = Pipeline(
        layers(), schedule, models.loss_fn, seed=7, autocast=autocast, recompute=recompute
    )
    pipe.ledger.is_on = True
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.02, max_grad_norm=0.4, validate="post")
    losses = []
    for step in range(NUM_STEPS):
        losses.append(float(pipe.step(*models.tokens(2 * NUM_MICROBATCHES, seed=step))))
        opt.step()
    pipe.step(*models.tokens(2 * NUM_MICROBATCHES))
    gradients = models.gradients(pipe.named_parameters())
    opt.synchronize()
    parameters = models.parameters(pipe.named_parameters())
    assert pipe.ledger.activations.live_bytes() == 0
    return losses, gradients, parameters, pipe.ledger.activations.peak_bytes


@pytest.mark.parametrize("num_ranks", SCHEDULES)
def test_losses_and_gradients_keep_their_bits_in_less_memory(num_ranks):
    names = SCHEDULES[num_ranks]
    schedules = {name: build(name, num_ranks, NUM_MICROBATCHES) for name in names}
    for of_rank in values(launch(train, num_ranks, schedules)):
        for name, autocast in {key[:2] for key in of_rank}:
            losses, *found, peak = of_rank[name, autocast, "light"]
            expected_losses, *expected, plain_peak = of_rank[name, autocast, "off"]
            assert losses == expected_losses
            for a, b in zip(found, expected, strict=True):
                models.assert_same_bits(a, b)
            assert peak < 0.85 * plain_peak


def ask_for_more(rank):
    schedule = build("zb-h1", 1, 2)
    return attempt(Pipeline, layers(), schedule, models.loss_fn, recompute="all")


def test_an_unknown_way_is_refused():
    (found,) = values(launch(ask_for_more, 1))
    assert found == ("UsageError", "recompute must be 'off' or 'light', not 'all'")
