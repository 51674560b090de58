"""How good can a schedule be at best? Lower bounds on span and makespan that none can beat.

They hold for any order of ops that ``verify`` accepts, under any placement, costs and memory
limits. ``BOUNDS`` is the table of them: small functions, each with its proof, in ``of_ranks`` and
``of_pairs``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement
from zerobubble.search.bounds.fitting import wait_before_first_backward, weights_before_last_forward
from zerobubble.search.bounds.of_pairs import path, turn
from zerobubble.search.bounds.of_ranks import (
    BoundFunction,
    drain,
    load,
    memory_area,
    slot_area,
    warm_up,
)
from zerobubble.search.problem import Objective, Problem, Share

# Where bounds are equal, the first in this table gives the reason.
BOUNDS: tuple[BoundFunction, ...] = (load, warm_up, drain, path, memory_area, turn, slot_area)

# Values that differ by no more than rounding count as equal.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Bound:
    """A time that no schedule can beat, and what forbids it.

    Attributes:
        value: the least span or makespan.
        name: which bound it is: ``load``, ``warm-up``, ``drain``, ``path``, ``memory-area``,
            ``turn`` or ``slot-area``.
        rank: whose span it is.
        other: for ``path`` and ``turn`` the rank whose work holds that one up.
        cause: what limits that work.
    """

    value: float
    name: str
    rank: int
    other: int | None
    cause: str

    @property
    def reason(self) -> str:
        """Say in words what forbids a shorter time."""
        ranks = f"rank {self.rank}" if self.other is None else f"ranks {self.rank} and {self.other}"
        return f"{ranks}, {self.name}, limited by {self.cause}"


def lower_bound(
    costs: Costs,
    placement: Placement,
    num_microbatches: int,
    memory: ArrayLike = np.inf,
    objective: Objective = "span",
    after: ArrayLike = 0.0,
) -> Bound:
    """Give the largest time that is known to be unbeatable.

    Args:
        costs: of every stage; BW takes the time of B and W.
        placement: which rank holds which stage.
        num_microbatches: how many there are.
        memory: limit for every rank, or one for each, in the unit of ``costs.activation``.
        objective: whether to bound the ``span`` or the ``makespan``.
        after: what every rank, or each, does after its last op, and counts too.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limits;
            then the message names the smallest limit that will do, and why.

    >>> from zerobubble.ir import linear
    >>> bound = lower_bound(Costs.uniform(4), linear(4), num_microbatches=8, memory=4)
    >>> bound.value, bound.reason
    (27.0, 'rank 0, warm-up, limited by memory')
    """
    return lower_bounds(costs, placement, num_microbatches, memory, objective, after)[0]


def lower_bounds(
    costs: Costs,
    placement: Placement,
    num_microbatches: int,
    memory: ArrayLike = np.inf,
    objective: Objective = "span",
    after: ArrayLike = 0.0,
) -> list[Bound]:
    """Give the largest bound of each kind, best first; arguments as for ``lower_bound``."""
    problem = Problem(costs, placement, num_microbatches, memory, objective)
    extra: Floats = np.broadcast_to(np.asarray(after, np.float64), placement.num_ranks)
    found = [_largest(problem, function, extra) for function in BOUNDS]
    best = max(bound.value for bound in found) * (1 - ROUNDING)
    return sorted(found, key=lambda bound: -min(bound.value, best))


def _largest(problem: Problem, function: BoundFunction, after: Floats) -> Bound:
    """Find the rank, or the two, for which a bound is largest: the first of equals."""
    values = function(problem)
    values = values + after.reshape(-1, *[1] * (values.ndim - 1))
    place = np.argwhere(values >= values.max() * (1 - ROUNDING))[0].tolist()
    rank, other = (*place, None)[:2]
    name = function.__name__.replace("_", "-")
    working = problem.shares[rank if other is None else other]
    return Bound(float(values.max()), name, rank, other, _cause(name, working))


def _cause(name: str, working: Share) -> str:
    """Say what limits the work of the rank that a bound looks at."""
    if name == "load":
        return "its work"
    if name == "path" and not (
        wait_before_first_backward(working) + weights_before_last_forward(working)
    ):
        return f"the work of rank {working.rank}"
    return "the number of microbatches" if working.fits_all else "memory"
