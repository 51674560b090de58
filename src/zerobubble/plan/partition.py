"""How many layers does every stage get, so that the longest stage is as short as possible?

Stages are runs of layers, each of at least one. Without memory limits, or where every rank has one
stage, dynamic programming gives the answer. Where the stages of a rank share its memory, its
answer is right if it happens to fit; else ``packing`` searches.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.plan.cuts import interval_sums, longest_stage, sums_of_ranks
from zerobubble.plan.packing import WORK, pack

# Sums that differ by no more than this share count as equal.
ROUNDING = 1e-12


class Partition(NamedTuple):
    """Consecutive layers for every stage.

    Attributes:
        layers_per_stage: how many layers each stage has.
        is_proved: whether no partition within the limits has a shorter longest stage.
    """

    layers_per_stage: tuple[int, ...]
    is_proved: bool


def partition(
    weights: ArrayLike,
    num_stages: int,
    placement: Placement | None = None,
    stage_bytes: ArrayLike | None = None,
    limits: ArrayLike | None = None,
    work: int = WORK,
) -> Partition | None:
    """Cut layers into stages so that the longest is as short as possible; None where none fits.

    Of equally good partitions it takes one whose stages have the smallest sum of squares, if
    dynamic programming finds it. Where stages share the memory of a rank and the search gives up,
    there may be one even if the answer is None.

    Args:
        weights: time of every layer.
        num_stages: how many stages there are.
        placement: rank of every stage; each on a rank of its own by default.
        stage_bytes: what a stage of layers ``i`` to ``j - 1`` takes in memory at ``[i, j]``; shape
            (number of layers + 1,) twice.
        limits: memory of every rank, for the sum over its stages.
        work: how many steps the search may take where stages share the memory of a rank.

    Raises:
        UsageError: there are fewer layers than stages.

    >>> partition([1, 1, 1, 1, 4], num_stages=3)
    Partition(layers_per_stage=(2, 2, 1), is_proved=True)
    """
    times = interval_sums(weights)
    num_layers = len(times) - 1
    if not 1 <= num_stages <= num_layers:
        raise UsageError(
            f"{num_layers} layers cannot be cut into {num_stages} stages of at least one layer: "
            "use fewer ranks or stages a rank"
        )
    holders = placement.stage_to_rank if placement else tuple(range(num_stages))
    room = np.full(max(holders) + 1, np.inf) if limits is None else np.asarray(limits, np.float64)
    sizes = np.zeros_like(times) if stage_bytes is None else np.asarray(stage_bytes, np.float64)
    lengths = shortest_longest(times, sizes, room[list(holders)])
    if lengths is None:
        return None
    if (sums_of_ranks(sizes, lengths, holders, len(room)) <= room).all():
        return Partition(lengths, True)
    packed = pack(times, sizes, holders, room, longest_stage(times, lengths), lengths, work)
    return Partition(packed.layers_per_stage, packed.is_proved) if packed.layers_per_stage else None


def shortest_longest(times: Floats, stage_bytes: Floats, room: Floats) -> tuple[int, ...] | None:
    """Minimise the longest stage where each has room for itself; of these, the sum of squares.

    ``room`` is by stage.
    """
    allowed = [np.where(stage_bytes <= most, times, np.inf) for most in room.tolist()]
    longest, _ = best_cuts(allowed, np.maximum)
    if longest == np.inf:
        return None
    short = [np.where(each <= longest * (1 + ROUNDING), each, np.inf) for each in allowed]
    return best_cuts([each**2 for each in short], np.add)[1]


def best_cuts(values: Sequence[Floats], join: np.ufunc) -> tuple[float, tuple[int, ...]]:
    """Give the least value of a partition, joined from those of its stages, and the partition.

    ``values`` has a table for every stage. The recursion is over suffixes: the best for stages
    ``s`` and later, and layers ``i`` and later, is the least over ``j`` of what stage ``s`` with
    layers ``i`` to ``j - 1`` makes of the best for the stages after it and the layers from ``j``.
    """
    best: Floats = np.full(len(values[0]), np.inf)
    best[-1] = 0.0 if join is np.add else -np.inf
    choices = []
    for table in reversed(values):
        joined = join(table, best[None, :])
        choices.append(joined.argmin(axis=1))
        best = joined.min(axis=1)
    lengths, i = [], 0
    for choice in reversed(choices):
        lengths.append(int(choice[i]) - i)
        i = int(choice[i])
    return float(best[0]), tuple(lengths)
