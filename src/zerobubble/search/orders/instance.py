"""What do the hot loops read? A problem as flat arrays."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.search.problem import Problem


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


@lru_cache(maxsize=16)
def instance_of(problem: Problem) -> Instance:
    """Give the arrays of a problem; the same ones for the same problem."""
    holders = np.array(problem.placement.stage_to_rank, dtype=np.int64)
    crosses = np.append(holders[:-1] != holders[1:], False)
    costs = problem.costs
    return Instance(
        holders,
        np.argsort(holders, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(holders))]),
        costs.forward,
        costs.backward_input,
        costs.backward_weight,
        np.where(crosses, costs.transfer, 0.0),
        costs.activation,
        costs.activation_kept,
        np.array(problem.limits, dtype=np.float64),
        problem.num_microbatches,
    )
