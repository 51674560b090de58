"""Does the search find the optimum of small problems? A solver proves what it is.

The solver gets the lower bound of the search as a constraint and its schedule to start from. Each
problem for which the search is worse than the optimum is printed as Python, smallest first, to be
pasted behind ``from benchmarks.exactness import Small``.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import tyro

from benchmarks.exact import Model
from zerobubble import jit
from zerobubble.costs import Costs
from zerobubble.ir import Placement, linear, looped, wave
from zerobubble.search import SearchResult, search
from zerobubble.search.limits import smallest_memory
from zerobubble.search.problem import Objective
from zerobubble.simulate import simulate

_SAME = 1e-9
Draw = Callable[[int, int], int]


@dataclass(frozen=True)
class Small:
    """A small problem; all numbers are whole.

    Attributes:
        holders: rank of each stage.
        columns: the columns of ``Costs``.
        num_microbatches: m.
        limits: memory limit of each rank.
        objective: what is to be short.
    """

    holders: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    num_microbatches: int
    limits: tuple[int, ...]
    objective: Objective

    @cached_property
    def costs(self) -> Costs:
        """The columns as costs."""
        return Costs(*map(np.array, self.columns))

    @cached_property
    def placement(self) -> Placement:
        """Which rank holds which stage."""
        return Placement(self.holders)

    @property
    def num_ops(self) -> int:
        """Number of ops of a schedule that splits every backward."""
        return 3 * len(self.holders) * self.num_microbatches

    def search(self, effort: str) -> SearchResult:
        """Search for the best schedule."""
        num_ranks = self.placement.num_ranks
        size = self.costs, num_ranks, self.num_microbatches, self.limits
        return search(*size, self.placement, self.objective, effort)

    def optimum(self, known: SearchResult, deterministic_time: float) -> int | None:
        """Prove the optimum; None if the solver cannot, or if it takes ops that start too late."""
        model = Model(self.costs, self.placement, self.num_microbatches, self.limits)
        found = model.shortest(self.objective, deterministic_time, known.bound, known.timeline)
        if found is None:
            return None
        value = getattr(simulate(found.schedule, self.costs), self.objective)
        is_reached = min(value, known.value) <= found.value * (1 + _SAME)
        return found.value if is_reached else None


class Proved(NamedTuple):
    """A problem with its optimum, and what the search finds with each effort that was tried."""

    small: Small
    optimum: int
    bound: float
    values: dict[str, float]

    def gap(self, effort: str) -> float:
        """Say how far above the optimum an effort is; what quick finds, default finds as well."""
        return self.values.get(effort, self.values["quick"]) / self.optimum - 1

    def __str__(self) -> str:
        values = ", ".join(f"{effort} {value:g}" for effort, value in self.values.items())
        return f"{self.small}  # optimum {self.optimum}, {values}, bound {self.bound:g}"


def draw_small(seed: int, number: int) -> Small:
    """Draw one of the problems of a seed."""
    random = Random(f"{seed} {number}")
    placement, draw = draw_placement(random), random.randint
    costs = whole_costs(draw, placement.num_stages, are_even=draw(0, 1) == 0)
    num_microbatches = draw(placement.num_ranks, 2 * placement.num_ranks)
    needed = smallest_memory(costs, placement).astype(int).tolist()
    return Small(
        placement.stage_to_rank,
        tuple(tuple(map(int, column)) for column in costs.to_dict().values()),
        num_microbatches,
        tuple(draw(least, draw(1, num_microbatches) * least) for least in needed),
        "span" if draw(0, 1) else "makespan",
    )


def draw_placement(random: Random) -> Placement:
    """Draw a linear, V, looped, wave or uneven placement of at most eight stages."""
    shape, p = random.randint(0, 4), random.randint(2, 4)
    if shape < 3:
        return (linear(p), wave(p, 2), looped(p, 2))[shape]
    if shape == 3:
        return wave(2, 4)
    p = min(p, 3)
    holders = [*range(p), *random.choices(range(p), k=random.randint(1, 3))]
    random.shuffle(holders)
    return Placement(tuple(holders))


def whole_costs(draw: Draw, num_stages: int, are_even: bool) -> Costs:
    """Draw costs that are whole numbers, the same for all stages or not."""

    def column(low: int, high: int) -> np.ndarray:
        values = [draw(low, high) for _ in range(num_stages)]
        return np.array(values[:1] * num_stages if are_even else values)

    sizes = column(2, 4)
    times = (column(1, 5) for _ in range(3))
    return Costs(*times, np.full(num_stages, draw(0, 2)), sizes, np.minimum(sizes, column(1, 4)))


def prove(small: Small, deterministic_time: float) -> Proved | None:
    """Search quickly, and prove the optimum if the solver can."""
    quick = small.search("quick")
    optimum = small.optimum(quick, deterministic_time)
    return optimum and Proved(small, optimum, quick.bound, {"quick": quick.value})


def main(
    count: int = 200, seed: int = 0, deterministic_time: float = 4.0, save: Path | None = None
) -> None:
    """Compare the search with proved optima, and print where it is worse.

    Default effort is tried only where quick effort misses the optimum.

    Args:
        count: how many problems.
        seed: of the draws.
        deterministic_time: what the solver may spend on each problem, in its own unit.
        save: a file for the problems with their optima, as JSON.
    """
    # Many tries make it worth compiling even for a few ops.
    with patch.object(jit, "SMALLEST_COMPILED_WORK", 0):
        proofs = (prove(draw_small(seed, number), deterministic_time) for number in range(count))
        proved = sorted(filter(None, proofs), key=lambda found: found.small.num_ops)
        print(f"{count} problems of seed {seed}: {len(proved)} optima proved")
        missed = _missed("quick", proved)
        if save is not None:
            save.write_text(_as_json(proved))
        for found in missed:
            found.values["default"] = found.small.search("default").value
        _missed("default", proved)


def _missed(effort: str, proved: list[Proved]) -> list[Proved]:
    """Print how close an effort comes and where it is worse than the optimum; give the latter."""
    gaps = [found.gap(effort) for found in proved] or [0.0]
    missed = [found for found in proved if found.gap(effort) > _SAME]
    num_equal = len(proved) - len(missed)
    print(
        f"\n{effort} effort: optimal in {num_equal} ({num_equal / len(gaps):.1%}), mean gap "
        f"{np.mean(gaps):.3%}, largest {max(gaps):.2%}; not in"
    )
    print(*missed, sep="\n", flush=True)
    return missed


def _as_json(proved: list[Proved]) -> str:
    """Write one line for each problem."""
    rows = [
        json.dumps(asdict(found.small) | {"optimum": found.optimum, "quick": found.values["quick"]})
        for found in proved
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"


if __name__ == "__main__":
    tyro.cli(main)
