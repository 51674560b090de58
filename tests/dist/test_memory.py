"""Is the memory of activations the simulated one, and does no memory grow with the microbatches?"""

import random

import numpy as np
import pytest

from tests.dist import models
from tests.dist.harness import launch, values
from tests.strategies import random_schedule
from zerobubble import Costs, Pipeline, build, simulate
from zerobubble.ir import Kind
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers, loss

BYTES_OF_BOUNDARY = 2 * models.LENGTH * models.WIDTH * 4


def peaks(rank, schedules):
    """Give the peak of the first step, when layouts are unknown, and of the second."""
    found = {}
    for key, schedule in schedules.items():
        pipe = Pipeline(models.built(models.transformer()), schedule, models.loss_fn)
        pipe.ledger.is_on = True
        batch = models.tokens(2 * schedule.num_microbatches)
        pipe.step(*batch)
        first = pipe.ledger.boundary.peak_bytes
        pipe.ledger.clear()
        pipe.step(*batch)
        boundary = pipe.ledger.boundary
        found[key] = first, boundary.peak_bytes, boundary.live_bytes()
    return found


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_peak_of_boundary_bytes_is_equal_for_16_and_64_microbatches(num_ranks):
    keys = [(name, m) for name in ("1f1b", "zb-h1", "zb-h2", "gpipe") for m in (16, 64)]
    schedules = {key: build(key[0], num_ranks, key[1]) for key in keys}
    for rank, found in enumerate(values(launch(peaks, num_ranks, schedules))):
        for name in ("1f1b", "zb-h1", "zb-h2"):
            assert found[name, 16] == found[name, 64], f"{name} on rank {rank}"
        for key, (first, second, after) in found.items():
            assert 0 < first <= second, f"{key} on rank {rank}"
            assert second % BYTES_OF_BOUNDARY == 0
            assert after == 0, f"{key} on rank {rank}: a boundary tensor outlived its step"
        if rank:  # GPipe keeps the inputs of all forwards for the backwards: the ledger sees it
            assert found["gpipe", 64][1] >= found["gpipe", 16][1] + 48 * BYTES_OF_BOUNDARY


NAMES = ("1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "interleaved:v=2")
FLAT = ("1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved:v=2")
CONFIG = ModelConfig(layers=14, dim=32, heads=2, sequence=16)


def alone(schedule):
    """Make a schedule of one microbatch that splits the backward where this one does."""
    is_split = any((schedule.fields(order)[0] == Kind.W).any() for order in schedule.orders)
    return random_schedule(random.Random(0), schedule.placement, 1, 0.0 if is_split else 1.0)


def activation_bytes(rank, schedules):
    """Give the live bytes of activations after every op of a step."""
    found = []
    for schedule in schedules:
        pipe = Pipeline(build_layers(CONFIG), schedule, loss)
        pipe.ledger.is_on = True
        pipe.step(*models.tokens(2 * schedule.num_microbatches, length=CONFIG.sequence))
        assert pipe.ledger.activations.live_bytes() == 0
        found.append(pipe.ledger.activation_bytes)
    return found


def measured_costs(schedule, of_ranks):
    """Take every stage's bytes after F and after B from a run with one microbatch."""
    held, kept = np.zeros((2, schedule.num_stages))
    for rank, curve in enumerate(of_ranks):
        changes = np.diff([0, *curve])
        for op, change in zip(schedule.ops(rank), changes, strict=True):
            if op.kind is Kind.F:
                held[op.stage] = kept[op.stage] = change
            elif op.kind is Kind.B:
                kept[op.stage] += change
    times = np.ones(schedule.num_stages)
    return Costs(times, times, times, 0 * times, held, kept)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_peak_of_activation_bytes_is_the_simulated_one_and_flat(num_ranks):
    sizes = (2 * num_ranks, 6 * num_ranks)
    schedules = [build(name, num_ranks, m) for name in NAMES for m in sizes]
    singles = [alone(schedule) for schedule in schedules]
    of_ranks = values(launch(activation_bytes, num_ranks, schedules + singles))
    peaks = {}
    for i, (schedule, single) in enumerate(zip(schedules, singles, strict=True)):
        costs = measured_costs(single, [found[len(schedules) + i] for found in of_ranks])
        simulated = simulate(schedule, costs).peak_memory_per_rank
        counted = [max(found[i]) for found in of_ranks]
        np.testing.assert_allclose(counted, simulated, rtol=0.1, err_msg=str(schedule.name))
        peaks[schedule.name, schedule.num_microbatches] = counted
    for name in FLAT:
        assert peaks[name, sizes[0]] == peaks[name, sizes[1]], name
