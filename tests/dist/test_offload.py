"""Does nothing change, not by a bit, when activations leave the device or are computed again?"""

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.dist import models, post_validation
from tests.dist.cases import PLACEMENTS, defined, num_layers, placed
from tests.dist.harness import launch, values
from tests.dist.moved import moved
from tests.dist.post_validation import INF, TO_CLIP, Case, blocks, compare, plain
from tests.dist.test_situations import MODELS
from zerobubble import Pipeline, build
from zerobubble.runtime import Offload

ALL = Offload(smallest_bytes=1)
WIDTH = models.WIDTH


def run(layers, schedule, offload=ALL, num_steps=1, batch=None, **options):
    """Give losses, gradients and buffers of some steps, and the peak of the host pool."""
    pipe = Pipeline(layers, schedule, models.loss_fn, offload=offload, **options)
    batch = batch or models.tokens(2 * schedule.num_microbatches)
    losses = [float(pipe.step(*batch)) for _ in range(num_steps)]
    buffers = {
        f"{number}.{name}": value.numpy().copy()
        for number, stage in pipe.stages.items()
        for name, value in stage.module.named_buffers()
    }
    return losses, models.gradients(pipe.named_parameters()) | buffers, pipe.offloading


def assert_same(actual, expected):
    assert actual[0] == expected[0]
    models.assert_same_bits(actual[1], expected[1])


# --- schedules -----------------------------------------------------------------------------------

KEYS = [
    *((p, name, rounds * p)
      for p in (1, 2, 3)
      for name, rounds in (("1f1b", 1), ("zb-h1", 2), ("zb-v", 1), ("interleaved", 2))),
    *[(2, "three-stages", 3), (2, "crowded", 1), (3, "four-stages", 2), (3, "zb-h1", 2)],
    (4, "zb-v", 5),
]  # fmt: skip


def _schedule(key):
    p, name, m = key
    return placed(p, name, m) if name in PLACEMENTS[p] else defined(name, p, m)


def run_moved(rank, keys, directory):
    """Compare every schedule with itself in three ways: offloaded to both stores, and with R."""
    for key in keys:
        schedule = _schedule(key)
        layers = models.transformer(num_layers(schedule))
        expected = run(models.built(layers), schedule)
        to_file = Offload(directory, verify=True, smallest_bytes=1)
        for kinds, offload in (("O", ALL), ("O", to_file), ("R", None), ("OR-", to_file)):
            actual = run(models.built(layers), moved(schedule, kinds), offload)
            assert_same(actual, expected)
            pool, store = actual[2].pool, actual[2].copies
            assert (pool.peak_bytes > 0) == (offload is ALL), (key, kinds)
            assert pool.lent_bytes == 0
            store.close()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_losses_and_gradients_keep_their_bits(num_ranks, tmp_path):
    keys = [key for key in KEYS if key[0] == num_ranks and _schedule(key)]
    values(launch(run_moved, num_ranks, keys, str(tmp_path)))
    assert not list(tmp_path.iterdir()), "the files are gone"


# --- models --------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Draws from three generators, counts in a buffer that its output depends on, and norms."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(models.LENGTH)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mask", torch.ones(WIDTH))

    def forward(self, x):
        self.count += 1
        x = torch.dropout(self.norm(self.linear(x)), 0.5, True) * self.mask
        return torch.tanh(x) * random.random() * float(np.random.random()) / float(self.count)


class Changing(nn.Module):
    """Changes the batch itself, and what it has saved outside of any graph's sight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(models.VOCABULARY + 2, WIDTH)

    def forward(self, x):
        return self.embed(x.add_(1).clone()).sin().mul_(2).relu_()


NAMES = "structured in-place turned twice collecting own-function compiled checkpointed".split()
SITUATIONS = {name: (MODELS[name], {}) for name in NAMES}
HARD = {
    "noisy": ([models.embedding, *[Noisy] * 4, models.Head], {}),
    "changing": ([Changing, *[models.MLP] * 4, models.Head], {}),
    "bfloat16": (models.transformer(6), {"autocast": torch.bfloat16}),
    "tied": (models.transformer(6), {"tied": [["0.weight", "5.out.weight"]]}),
}
SCHEDULES = [build("1f1b", 2, 3), placed(2, "three-stages", 3)]


def run_models(rank, names):
    """Take two steps on a batch that cannot be shared evenly."""
    for name in names:
        builders, options = (HARD | SITUATIONS)[name]
        for schedule in SCHEDULES if name in HARD else SCHEDULES[-1:]:
            found = []
            for kinds in ("-", "O", "R"):
                random.seed(1)
                np.random.seed(1)
                ran = moved(schedule, kinds)
                batch = [part.clone() for part in models.tokens(8)]
                found.append(
                    run(models.built(builders), ran, num_steps=2, batch=batch, **options)
                )
                found[-1][1]["batch"] = batch[0].numpy()
            for kinds, actual in zip("OR", found[1:], strict=True):
                try:
                    assert_same(actual, found[0])
                except AssertionError as error:
                    raise AssertionError(f"{name}, {schedule.name}, {kinds}: {error}") from error


@pytest.mark.parametrize("cases", [HARD, SITUATIONS], ids=["hard", "situations"])
def test_any_model_keeps_its_bits(cases):
    values(launch(run_models, 2, list(cases)))


# --- post-validation -----------------------------------------------------------------------------


def test_a_refuted_guess_takes_forwards_back_that_have_been_offloaded():
    schedule = build("zb-v", 2, 4)
    cases = {
        (layers.__name__, kinds): Case(
            moved(schedule, kinds),
            num_steps=5,
            spoils={1: (1, TO_CLIP), 3: (0, INF)},
            layers=layers,
            options={"offload": ALL},
        )
        for layers in (blocks, plain)
        for kinds in ("-", "O", "R")
    }
    for found in values(launch(compare, 2, cases)):
        for (name, kinds), (sync, post) in found.items():
            expected = found[name, "-"]
            assert sync == expected[0], (name, kinds)
            assert post == expected[1], (name, kinds)
            assert post[:2] == sync[:2], (name, kinds)
            assert post[2]["num_replayed"] > 0, (name, kinds)
