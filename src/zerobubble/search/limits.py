"""Within which memory limits does a schedule exist?"""

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.verify import limits_of_ranks


def smallest_memory(costs: Costs, placement: Placement) -> Floats:
    """Give, for every rank, the smallest memory limit within which a schedule exists.

    It is what one microbatch allocates on all stages of the rank. No less will do: no backward
    of a microbatch runs before its forward on the last stage of the rank, and then all of them
    are held. No more is needed: one microbatch after the other runs within it.

    >>> from zerobubble.ir import wave
    >>> smallest_memory(Costs.uniform(4, activation=3), wave(2, v=2)).tolist()
    [6.0, 6.0]
    """
    return np.bincount(placement.stage_to_rank, weights=costs.activation).astype(np.float64)


def memory_limits(memory: ArrayLike, costs: Costs, placement: Placement) -> Floats:
    """Give every rank its memory limit, from one number for all or one for each.

    Raises:
        UsageError: a limit is not a number or negative, there are too few or too many, or no
            schedule exists within one: the message names the smallest limit that will do.
    """
    limits = limits_of_ranks(memory, placement.num_ranks)
    needed = smallest_memory(costs, placement)
    if (needed > limits * (1 + TOLERANCE)).any():
        rank = int(np.argmax(needed - limits))
        raise UsageError(_explain_shortage(rank, limits, needed, placement))
    return limits


def _explain_shortage(rank: int, limits: Floats, needed: Floats, placement: Placement) -> str:
    """Say why a limit is too small and which would do."""
    stages = placement.stages_of(rank)
    names = ("stages " if len(stages) > 1 else "stage ") + ", ".join(map(str, stages))
    return (
        f"rank {rank}: no schedule fits into memory {limits[rank]:g}: when F0 of stage "
        f"{stages[-1]} runs, the rank holds one activation of {names}, together "
        f"{needed[rank]:g}: allow at least {needed[rank]:g} on rank {rank}"
    )
