"""Which rank is looked at next? The earliest of a binary heap, kept in flat arrays."""

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.jit import hot


@hot
def push(times: Floats, ranks: Codes, size: int, time: float, rank: int) -> int:
    """Add an entry to a binary heap of the given size; return the new size."""
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
