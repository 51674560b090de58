"""Is the search never above a registered schedule that fits, where stages differ in their costs?"""

from itertools import product

import numpy as np
import pytest

from tests.strategies import PLAIN
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import placement_named
from zerobubble.schedules import REGISTRY
from zerobubble.search import search
from zerobubble.search.auto import AUTO
from zerobubble.search.limits import smallest_memory
from zerobubble.simulate import simulate
from zerobubble.verify import verify, violations

P, M = 4, 8
PLACEMENTS = ("linear", "v", "looped:2", "wave:4")
PARAMETERS = {"v": (2, 3, 4), "waves": (1, 2), "g": (2, 4, 8)}


def heavier_last_stage(placement):
    """A last stage 1.6 times as long, as one with the loss over a large vocabulary has."""
    factors = np.ones(placement.num_stages)
    factors[-1] = 1.6
    costs = Costs.of_ranks(placement, 1, 1.1, 0.7, 0.05, kept=0.4)
    times = (costs.forward, costs.backward_input, costs.backward_weight)
    return Costs(
        *(time * factors for time in times),
        costs.transfer,
        costs.activation,
        costs.activation_kept,
    )


def random_stages(seed):
    """Times and sizes of every stage between a half and one and a half of the usual."""

    def costs_of(placement):
        factors = np.random.default_rng(seed).uniform(0.5, 1.5, (4, placement.num_stages))
        costs = Costs.of_ranks(placement, 1, 1.1, 0.7, 0.05, kept=0.4)
        return Costs(
            costs.forward * factors[0],
            costs.backward_input * factors[1],
            costs.backward_weight * factors[2],
            costs.transfer,
            costs.activation * factors[3],
            costs.activation_kept * factors[3],
        )

    return costs_of


COSTS = {
    "last stage heavier": heavier_last_stage,
    **{f"random {seed}": random_stages(seed) for seed in range(3)},
}


def registered(placement, costs):
    """Yield every registered schedule with this placement, under all its parameters."""
    for recipe in (found for name, found in REGISTRY.items() if name in PLAIN and name != AUTO):
        for values in product(*(PARAMETERS[name] for name in recipe.parameters)):
            parameters = dict(zip(recipe.parameters, values, strict=True))
            if recipe.place(P, **parameters) == placement:
                try:
                    yield recipe.build(P, M, costs, **parameters)
                except (ScheduleError, UsageError):  # not defined for these numbers
                    continue


@pytest.mark.parametrize("microbatches", [P // 2, P, 2 * P], ids="memory {}".format)
@pytest.mark.parametrize("costs_of", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_never_above_a_registered_schedule_that_fits(name, costs_of, microbatches):
    placement = placement_named(name, P)
    costs = costs_of(placement)
    limits = microbatches * smallest_memory(costs, placement)
    fitting = [
        simulate(schedule, costs)
        for schedule in registered(placement, costs)
        if not violations(schedule, costs, limits)
    ]
    assert fitting or microbatches < 2 * P  # what gpipe and wave take
    for objective in ("span", "makespan"):
        found = search(costs, P, M, limits, placement, objective, "quick")
        verify(found.schedule, costs, limits)
        for timeline in fitting:
            assert found.value <= getattr(timeline, objective) * (1 + 1e-9), timeline.schedule.name
