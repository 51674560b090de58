"""Which rank is looked at next? The earliest of a binary heap, kept in flat arrays."""

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.jit import hot

_NEVER = np.inf


# Entries that a rank may leave behind, on average, before they are cleared away.
_ENTRIES_A_RANK = 128


def heap_size(num_ranks: int) -> int:
    """Give the length of the arrays: some room for entries that no longer hold."""
    return (num_ranks + 1) * _ENTRIES_A_RANK


@hot
def push(times: Floats, ranks: Codes, wake: Floats, size: int, rank: int) -> int:
    """Add the time at which a rank is to be looked at, ``wake[rank]``; return the new size.

    Entries hold as long as they give the wake time of their rank. If there is no more room, the
    heap is built anew from those that do.
    """
    if size == len(times):
        size = 0
        for other in range(len(wake)):
            if other != rank and wake[other] < _NEVER:
                size = sift_up(times, ranks, size, wake[other], other)
    return int(sift_up(times, ranks, size, wake[rank], rank))


@hot
def sift_up(times: Floats, ranks: Codes, size: int, time: float, rank: int) -> int:
    """Add an entry at the end of the heap and let it rise; return the new size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        if times[parent] <= time:
            break
        times[hole], ranks[hole] = times[parent], ranks[parent]
        hole = parent
    times[hole], ranks[hole] = time, rank
    return size + 1


@hot
def pop(times: Floats, ranks: Codes, size: int) -> int:
    """Take the earliest entry off a binary heap; return the new size."""
    size -= 1
    time, rank = times[size], ranks[size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[hole], ranks[hole] = times[child], ranks[child]
        hole = child
    times[hole], ranks[hole] = time, rank
    return size
