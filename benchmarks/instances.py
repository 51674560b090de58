"""Which instances does a check of the search meet? Random ones of all kinds.

Any placement, costs with zeros and over many orders of magnitude, and a limit for each rank from
the smallest possible to ample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement, looped, wave
from zerobubble.search.limits import smallest_memory
from zerobubble.search.problem import Objective, Problem

MOST_RANKS, MOST_MICROBATCHES, MOST_STAGES_A_RANK = 6, 12, 4
# One in so many instances goes through the whole search.
SEARCHED = 100
_USUAL_WAYS = ("listed", "listed", "justified", "moved", "rounds of a V")

Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """An instance, and what builds schedules for it; ``repr`` gives the line that makes it again.

    Attributes:
        holders: rank of each stage.
        columns: the columns of ``Costs``.
        num_microbatches: m.
        limits: memory limit of each rank.
        objective: what is to be short.
        way: which way of ``safety.WAYS`` builds the schedules.
        seed: of what the way draws.
    """

    holders: tuple[int, ...]
    columns: tuple[tuple[float, ...], ...]
    num_microbatches: int
    limits: tuple[float, ...]
    objective: Objective
    way: str
    seed: int

    @cached_property
    def problem(self) -> Problem:
        """What is to be scheduled."""
        return Problem(
            Costs(*map(np.array, self.columns)),
            Placement(self.holders),
            self.num_microbatches,
            np.array(self.limits),
            self.objective,
        )


def draw_case(number: int, seed: int) -> Case:
    """Draw one of the instances of a seed."""
    random = np.random.default_rng([seed, number])
    placement = draw_placement(random)
    costs = draw_costs(random, placement.num_stages)
    num_microbatches = int(random.integers(1, MOST_MICROBATCHES + 1))
    way = str(random.choice(_USUAL_WAYS)) if number % SEARCHED else "search"
    if way == "rounds of a V":
        placement = wave(placement.num_ranks, 2)
        costs = draw_costs(random, placement.num_stages)
    return Case(
        placement.stage_to_rank,
        tuple(tuple(column) for column in costs.to_dict().values()),
        num_microbatches,
        tuple(draw_limits(random, smallest_memory(costs, placement), num_microbatches).tolist()),
        "span" if random.random() < 0.5 else "makespan",
        way,
        number,
    )


def draw_placement(random: Random) -> Placement:
    """Draw a regular placement, or any: ranks in any order with different numbers of stages."""
    num_ranks = int(random.integers(1, MOST_RANKS + 1))
    per_rank = int(random.integers(1, MOST_STAGES_A_RANK + 1))
    shape = random.integers(4)
    if shape == 0:
        return looped(num_ranks, per_rank)
    if shape == 1:
        return wave(num_ranks, per_rank)
    counts = random.integers(1, MOST_STAGES_A_RANK + 1, num_ranks)
    holders = np.repeat(random.permutation(num_ranks), counts)
    return Placement(tuple((holders if shape == 2 else random.permutation(holders)).tolist()))


def draw_costs(random: Random, num_stages: int) -> Costs:
    """Draw times and sizes: equal or not, with zeros, over many orders of magnitude."""
    forward, backward, weight, transfer, activation = (
        draw_column(random, num_stages) for _ in range(5)
    )
    share = (0.0, 1.0, random.random(), random.random(num_stages))[random.integers(4)]
    unit = 10.0 ** random.integers(-6, 7)
    times = (column * unit for column in (forward, backward, weight, transfer))
    return Costs(*times, activation, activation * share)


def draw_column(random: Random, num_stages: int) -> Floats:
    """Draw one value for each stage."""
    kinds: tuple[Callable[[], Floats], ...] = (
        lambda: np.full(num_stages, random.random()),
        lambda: random.integers(0, 5, num_stages).astype(np.float64),
        lambda: random.random(num_stages),
        lambda: 10.0 ** random.uniform(-4, 4, num_stages),
        lambda: np.zeros(num_stages),
    )
    column = kinds[random.choice(len(kinds), p=(0.25, 0.25, 0.25, 0.2, 0.05))]()
    if random.random() < 0.2:
        column[random.random(num_stages) < 0.3] = 0.0
    return column


def draw_limits(random: Random, least: Floats, num_microbatches: int) -> Floats:
    """Draw a limit for each rank, between the least and what all microbatches take, or none."""
    size = len(least) if random.random() < 0.5 else 1
    kinds: tuple[Callable[[], NDArray], ...] = (
        lambda: np.ones(size),
        lambda: random.integers(1, num_microbatches + 1, size),
        lambda: random.uniform(1, num_microbatches + 1, size),
        lambda: 1 + random.exponential(0.3, size),
        lambda: random.choice([1.0, 2.0, np.inf], size),
    )
    factors = kinds[random.integers(len(kinds))]()
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(least * factors, nan=0.0, posinf=np.inf)
