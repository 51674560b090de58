"""How much less memory do PO-H and PO-F hold, counted in real runs?"""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.dist.harness import launch, values
from tests.dist.test_memory import measured_costs
from tests.dist.test_offload_memory import changes
from zerobubble import Costs, Pipeline, Schedule, build, simulate
from zerobubble.ir import B, F, Kind, L, O, W, looped

V = 4
RATIOS = (0, 0.8)
CASES = [("interleaved", 0), *[(name, ratio) for name in ("po-h", "po-f") for ratio in RATIOS]]
WIDTH, NUM_TOKENS = 32, 32


class Peak(NamedTuple):
    """Of the worst rank, and of the largest stage, in bytes."""

    counted: int
    simulated: float
    of_stage: float
    of_transfer: float


class Block(nn.Module):
    """Saves tensors that are large enough to move, and small ones that stay."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def alone(num_ranks):
    """Offload all that one microbatch holds."""
    placement = looped(num_ranks, V)
    orders = []
    for stages in map(placement.stages_of, range(num_ranks)):
        away = [kind(s, 0) for s in stages for kind in (F, O)]
        orders.append(away + [kind(s, 0) for s in reversed(stages) for kind in (L, B, W)])
    return Schedule.from_ops("alone", placement, 1, orders)


def built(name, num_ranks, ratio):
    """Build a schedule for copies that take this share of the time of the compute."""
    costs = Costs.uniform(V * num_ranks, f=1, b=1, w=1)
    costs = costs.with_bandwidth(1 / (3 * ratio)) if ratio else costs
    return build(f"{name}:v={V}", num_ranks, 2 * num_ranks, costs=costs)


def activation_bytes(rank, schedules):
    """Give the live bytes of activations after every op of a step."""
    found = []
    for schedule in schedules:
        pipe = Pipeline([Block] * schedule.num_stages, schedule, nn.functional.mse_loss)
        pipe.ledger.is_on = True
        batch = torch.ones(schedule.num_microbatches, NUM_TOKENS, WIDTH)
        pipe.step(batch, batch)
        assert pipe.ledger.activations.live_bytes() == 0
        found.append(pipe.ledger.activation_bytes)
    return found


@pytest.fixture(scope="module")
def peaks():
    """Count and simulate the peak of the worst rank by schedule, ratio and number of ranks.

    In bytes; and give what the largest stage holds and what it moves.
    """
    found = {}
    for num_ranks in (2, 4):
        single = alone(num_ranks)
        schedules = {key: built(key[0], num_ranks, key[1]) for key in CASES}
        of_ranks = values(launch(activation_bytes, num_ranks, [single, *schedules.values()]))
        curves = [curves[0] for curves in of_ranks]
        moved = -changes(single, curves, Kind.O)
        costs = replace(measured_costs(single, curves), activation_offloaded=moved)
        for i, (key, schedule) in enumerate(schedules.items()):
            counted = max(max(curves[i + 1]) for curves in of_ranks)
            simulated = simulate(schedule, costs).peak_memory
            found[(*key, num_ranks)] = Peak(counted, simulated, costs.activation.max(), moved.max())
    return found


def test_peaks_are_the_simulated_ones_but_for_one_transfer(peaks):
    for key, peak in peaks.items():
        assert peak.counted <= peak.simulated + peak.of_transfer, key
        assert peak.counted >= 0.95 * peak.simulated, key


def test_po_h_holds_less_than_half_of_interleaved_1f1b(peaks):
    for (name, ratio, num_ranks), peak in peaks.items():
        if name == "po-h":
            interleaved = peaks["interleaved", 0, num_ranks]
            assert peak.counted <= 0.45 * interleaved.counted, (ratio, num_ranks)


@pytest.mark.parametrize("ratio", RATIOS)
def test_po_f_holds_at_most_one_stage_more_with_twice_as_many_ranks(peaks, ratio):
    two, four = (peaks["po-f", ratio, num_ranks] for num_ranks in (2, 4))
    assert four.counted <= two.counted + four.of_stage
