"""What follows from the number of layers of every stage? Sums over stages, and small changes."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Floats


def interval_sums(values: ArrayLike) -> Floats:
    """Sum the values of layers ``i`` to ``j - 1`` at ``[i, j]``; infinite where there is none.

    >>> interval_sums([1, 2])[0].tolist()
    [inf, 1.0, 3.0]
    """
    sums = np.append(0.0, np.cumsum(np.asarray(values, np.float64)))
    table: Floats = sums[None, :] - sums[:, None]
    table[np.tril_indices(len(sums))] = np.inf
    return table


def cuts(layers_per_stage: Sequence[int]) -> list[tuple[int, int]]:
    """Give the first layer of every stage, and the one after its last.

    >>> cuts((2, 1))
    [(0, 2), (2, 3)]
    """
    return list(pairwise(np.cumsum([0, *layers_per_stage]).tolist()))


def layers_of_stages(layers_per_stage: Sequence[int]) -> list[range]:
    """Give the layers of every stage.

    >>> layers_of_stages((2, 1))
    [range(0, 2), range(2, 3)]
    """
    return [range(i, j) for i, j in cuts(layers_per_stage)]


def stage_values(table: Floats, layers_per_stage: Sequence[int]) -> Floats:
    """Look up a value for every stage in a table by first layer and the one after the last."""
    ends = np.cumsum([0, *layers_per_stage])
    values: Floats = table[ends[:-1], ends[1:]]
    return values


def longest_stage(times: Floats, layers_per_stage: Sequence[int]) -> float:
    """Give the time of the longest stage."""
    return float(stage_values(times, layers_per_stage).max())


def sums_of_ranks(
    table: Floats, layers_per_stage: Sequence[int], holders: Sequence[int], num_ranks: int
) -> Floats:
    """Sum the values of the stages of every rank."""
    values = stage_values(table, layers_per_stage)
    sums: Floats = np.bincount(holders, weights=values, minlength=num_ranks).astype(np.float64)
    return sums


def moves(
    layers_per_stage: Sequence[int], givers: Iterable[int], takers: Iterable[int]
) -> Iterator[tuple[int, ...]]:
    """Yield partitions in which one stage has a layer less and another one more.

    All boundaries between the two shift by one layer.

    >>> list(moves((2, 1), [0], [1]))
    [(1, 2)]
    """
    others = list(takers)
    for giver in givers:
        for taker in others:
            if giver != taker and layers_per_stage[giver] > 1:
                changed = list(layers_per_stage)
                changed[giver] -= 1
                changed[taker] += 1
                yield tuple(changed)
