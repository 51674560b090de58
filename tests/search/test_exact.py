"""How close are the bounds and the search to the proved optimum of small problems?"""

import json
import random
from pathlib import Path

import pytest

from zerobubble.ir import Placement, linear, looped, wave
from zerobubble.search.bounds import lower_bound
from zerobubble.search.limits import smallest_memory

pytest.importorskip("ortools")

from benchmarks.exact import Model
from benchmarks.exactness import Small, whole_costs

# The work that the solver may spend on one problem, in its own unit: the same on any machine.
DETERMINISTIC_TIME = 2.0

NUM_PROBLEMS = 10
# For how many of these problems the bound is the optimum.
NUM_EQUAL = {
    linear(2): 10,
    linear(3): 8,
    wave(2, 2): 5,
    looped(2, 2): 4,
    Placement((0, 1, 0)): 5,
    Placement((1, 0, 0, 1)): 4,
    Placement((0, 1, 1, 2)): 8,
}


def problems(placement):
    """Yield costs, numbers of microbatches, limits and objectives; all are whole numbers."""
    draw = random.Random(0).randint
    for number in range(NUM_PROBLEMS):
        costs = whole_costs(draw, placement.num_stages, are_even=number % 2 == 0)
        num_microbatches = draw(2, 4 if placement.num_stages < 4 else 3)
        needed = smallest_memory(costs, placement).astype(int).tolist()
        limits = [draw(least, num_microbatches * least) for least in needed]
        yield costs, num_microbatches, limits, "span" if number % 4 < 2 else "makespan"


@pytest.mark.parametrize("placement", NUM_EQUAL, ids=str)
def test_bounds_and_optima(placement):
    num_equal = 0
    for costs, num_microbatches, limits, objective in problems(placement):
        model = Model(costs, placement, num_microbatches, limits)
        optimum = model.shortest(objective, DETERMINISTIC_TIME)
        bound = lower_bound(costs, placement, num_microbatches, limits, objective)
        assert optimum is not None
        assert bound.value <= optimum.value * (1 + 1e-9)
        num_equal += bound.value >= optimum.value * (1 - 1e-6)
    assert num_equal == NUM_EQUAL[placement]


# Proved by ``python -m benchmarks exactness --save``; most are above the bound.
OPTIMA = json.loads((Path(__file__).parent / "optima.json").read_text())


@pytest.mark.parametrize("row", OPTIMA, ids=lambda row: "-".join(map(str, row["holders"])))
def test_the_search_finds_the_optimum(row):
    small = Small(
        tuple(row["holders"]),
        row["columns"],
        row["num_microbatches"],
        row["limits"],
        row["objective"],
    )
    found = small.search("quick")
    assert found.value == pytest.approx(row["optimum"], rel=1e-9)
    assert found.bound <= row["optimum"] * (1 + 1e-9)
