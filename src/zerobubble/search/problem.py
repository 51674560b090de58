"""What is searched for? Costs, placement and limits as flat arrays for the hot loops."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Codes, Placement

OBJECTIVES = ("span", "makespan")


class Instance(NamedTuple):
    """The numbers of a problem; per stage unless said otherwise.

    Attributes:
        holders: rank of each stage.
        stages: stages of rank 0, then of rank 1, ..., each in forward order.
        offsets: where each rank's part of ``stages`` begins, and its end.
        forward: time of F.
        backward: time of B.
        weight: time of W.
        travel: time from this stage to the next; 0 within a rank.
        held: memory that F allocates.
        kept: the part that W frees.
        limits: memory limit of each rank.
        num_microbatches: m.
    """

    holders: Codes
    stages: Codes
    offsets: Codes
    forward: Floats
    backward: Floats
    weight: Floats
    travel: Floats
    held: Floats
    kept: Floats
    limits: Floats
    num_microbatches: int


@dataclass(frozen=True, eq=False)
class Problem:
    """Find the order of ops with the smallest objective within the limits.

    Attributes:
        placement: rank of each stage.
        costs: of each stage.
        num_microbatches: m.
        limits: memory limit of each rank, in the unit of ``costs.activation``; may be infinite.
        objective: ``span`` or ``makespan``.
    """

    placement: Placement
    costs: Costs
    num_microbatches: int
    limits: Floats
    objective: str = "span"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective must be span or makespan, not {self.objective!r}")

    @cached_property
    def instance(self) -> Instance:
        """The problem as arrays."""
        holders = np.array(self.placement.stage_to_rank, dtype=np.int64)
        counts = np.bincount(holders)
        crosses = np.append(holders[:-1] != holders[1:], False)
        costs = self.costs
        return Instance(
            holders,
            np.argsort(holders, kind="stable"),
            np.concatenate([[0], np.cumsum(counts)]),
            costs.forward,
            costs.backward_input,
            costs.backward_weight,
            np.where(crosses, costs.transfer, 0.0),
            costs.activation,
            costs.activation_kept,
            self.limits,
            self.num_microbatches,
        )

    @cached_property
    def loads(self) -> Floats:
        """Time that each rank works in a step."""
        costs, holders = self.costs, self.instance.holders
        work = costs.forward + costs.backward_input + costs.backward_weight
        loads: Floats = self.num_microbatches * np.bincount(holders, weights=work)
        return loads

    @cached_property
    def forward_heads(self) -> Floats:
        """Earliest start of F on each stage for a microbatch that is alone."""
        steps = self.costs.forward[:-1] + self.instance.travel[:-1]
        heads: Floats = np.concatenate([[0.0], np.cumsum(steps)])
        return heads

    @cached_property
    def backward_heads(self) -> Floats:
        """Earliest start of B on each stage for a microbatch that is alone."""
        turn = self.forward_heads[-1] + self.costs.forward[-1]
        steps = self.costs.backward_input[1:] + self.instance.travel[:-1]
        heads: Floats = turn + np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])
        return heads

    @property
    def num_ops(self) -> int:
        """Number of ops of a schedule with split backward."""
        return 3 * self.placement.num_stages * self.num_microbatches
