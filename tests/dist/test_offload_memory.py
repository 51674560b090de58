"""Is the memory that is left on the device the simulated one, when activations leave it?"""

from dataclasses import replace

import numpy as np
import pytest

from tests.dist.harness import launch, values
from tests.dist.moved import moved
from tests.dist.test_memory import activation_bytes, alone, measured_costs
from zerobubble import build, simulate
from zerobubble.ir import Kind

NAMES = ("1f1b", "zb-h1", "zb-v", "interleaved")


def changes(schedule, of_ranks, kind):
    """Tell what the op of a kind changes, by stage, in a run with one microbatch."""
    found = np.zeros(schedule.num_stages)
    for rank, curve in enumerate(of_ranks):
        for op, change in zip(schedule.ops(rank), np.diff([0, *curve]), strict=True):
            if op.kind is kind:
                found[op.stage] = change
    return found


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_simulated_peak_is_kept(num_ranks):
    plain = [build(name, num_ranks, 3 * num_ranks) for name in NAMES]
    schedules = [moved(schedule, kinds) for schedule in plain for kinds in ("O", "R", "OR-")]
    singles = [moved(alone(schedule), kind) for schedule in plain for kind in "-OR"]
    of_ranks = values(launch(activation_bytes, num_ranks, schedules + singles))
    for i, schedule in enumerate(schedules):
        first = 3 * (i // 3)
        of_single = [
            (singles[first + j], [found[len(schedules) + first + j] for found in of_ranks])
            for j in range(3)
        ]
        costs = replace(
            measured_costs(*of_single[0]),
            activation_offloaded=-changes(*of_single[1], Kind.O),
            activation_input=changes(*of_single[2], Kind.F),
        )
        simulated = simulate(schedule, costs).peak_memory_per_rank
        counted = [max(found[i]) for found in of_ranks]
        assert (np.array(counted) <= simulated).all(), schedule.name
        np.testing.assert_allclose(counted, simulated, rtol=0.02, err_msg=schedule.name)
