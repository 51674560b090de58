"""What is to be scheduled: which work has every rank, within which memory, and how early?"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.schedules.registry import LARGEST_SIZE
from zerobubble.search.limits import memory_limits

Objective = Literal["span", "makespan"]

# Beyond these the bounds, which compare all pairs of ranks, or the orders would fill the memory.
MOST_RANKS, MOST_STAGES = 4096, 2**16


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's share of a problem; the arrays are over its stages, in forward order.

    Attributes:
        rank: whose share it is.
        num_microbatches: how often every stage runs.
        limit: largest activation memory allowed, tolerance included; may be infinite.
        forward, backward, weight: times of F, B and W.
        activation, kept: what F allocates, and the part of it that W needs.
        earliest_forward, earliest_backward: when F and B of a microbatch can start that has the
            pipeline to itself and enters it at time 0.
    """

    rank: int
    num_microbatches: int
    limit: float
    forward: Floats
    backward: Floats
    weight: Floats
    activation: Floats
    kept: Floats
    earliest_forward: Floats
    earliest_backward: Floats

    @property
    def num_stages(self) -> int:
        """Number of stages that the rank holds."""
        return len(self.forward)

    @cached_property
    def load(self) -> float:
        """Time of all its ops: no schedule changes it."""
        one = self.forward + self.backward + self.weight
        return self.num_microbatches * float(one.sum())

    @property
    def start(self) -> float:
        """Earliest start of its first op, which is F of its first stage."""
        return float(self.earliest_forward[0])

    @property
    def fits_all(self) -> bool:
        """Whether the activations of all microbatches fit into the limit together."""
        return self.num_microbatches * float(self.activation.sum()) <= self.limit


@dataclass(frozen=True, eq=False)
class Problem:
    """Costs, placement, number of microbatches, memory limits, and what is to be short.

    Attributes:
        limits: memory limit of every rank, in the unit of ``costs.activation``.
        objective: ``span``, or ``makespan`` for steps that end in a barrier.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limits.
    """

    costs: Costs
    placement: Placement
    num_microbatches: int
    limits: ArrayLike = np.inf
    objective: Objective = "span"

    def __post_init__(self) -> None:
        self.costs.require_stages(self.placement.num_stages, f"placement {self.placement}")
        _require_size(self.placement, self.num_microbatches)
        if self.objective not in ("span", "makespan"):
            raise UsageError(f"objective must be span or makespan, not {self.objective!r}")
        limits = memory_limits(self.limits, self.costs, self.placement)
        object.__setattr__(self, "limits", limits)

    @property
    def num_ops(self) -> int:
        """Number of ops of a schedule that splits every backward."""
        return 3 * self.placement.num_stages * self.num_microbatches

    @cached_property
    def loads(self) -> Floats:
        """Time that each rank works in a step."""
        return np.array([share.load for share in self.shares])

    @cached_property
    def period(self) -> float:
        """Work of the busiest rank for one microbatch; 1 where no op takes time."""
        return float(self.loads.max()) / self.num_microbatches or 1.0

    @cached_property
    def earliest_starts(self) -> tuple[Floats, Floats]:
        """When F and B of every stage can start, for a microbatch that is alone."""
        return _earliest_starts(self.costs, self.placement)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """What every rank has to do."""
        costs, limits = self.costs, np.asarray(self.limits) * (1 + TOLERANCE)
        columns = np.stack(
            [
                costs.forward,
                costs.backward_input,
                costs.backward_weight,
                costs.activation,
                costs.activation_kept,
                *self.earliest_starts,
            ]
        )
        order = np.argsort(self.placement.stage_to_rank, kind="stable")
        counts = np.bincount(self.placement.stage_to_rank)
        of_ranks = np.split(columns[:, order], np.cumsum(counts)[:-1], axis=1)
        return tuple(
            Share(rank, self.num_microbatches, float(limits[rank]), *of_rank)
            for rank, of_rank in enumerate(of_ranks)
        )


def _require_size(placement: Placement, num_microbatches: int) -> None:
    if not isinstance(num_microbatches, int | np.integer):
        raise UsageError(f"microbatches must be a whole number, not {num_microbatches!r}")
    if num_microbatches < 1:
        raise UsageError(f"microbatches must be at least 1, not {num_microbatches}")
    sizes = {
        "ranks": (placement.num_ranks, MOST_RANKS),
        "stages": (placement.num_stages, MOST_STAGES),
        "ops a kind": (placement.num_stages * int(num_microbatches), LARGEST_SIZE),
    }
    for what, (size, most) in sizes.items():
        if size > most:
            raise UsageError(f"{size} {what} are too many for a search: at most {most}")


def _earliest_starts(costs: Costs, placement: Placement) -> tuple[Floats, Floats]:
    """When F and B of every stage can start, for a microbatch that is alone."""
    holders = np.asarray(placement.stage_to_rank)
    hops = np.where(holders[:-1] != holders[1:], costs.transfer[:-1], 0.0)
    forward = np.append(0.0, np.cumsum(costs.forward[:-1] + hops))
    steps = np.append(0.0, np.cumsum((costs.backward_input[1:] + hops)[::-1]))
    return forward, (forward[-1] + costs.forward[-1] + steps)[::-1]
