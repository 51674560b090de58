"""How short can the span of one rank be at best, by its work and its memory alone?"""

from collections.abc import Callable
from functools import wraps

import numpy as np

from zerobubble.costs import Floats
from zerobubble.search.fitting import (
    wait_after_last_forward,
    wait_before_first_backward,
    wait_before_last_forward,
)
from zerobubble.search.problem import Problem, Share

# Gives one value a rank, or one for each two ranks.
BoundFunction = Callable[[Problem], Floats]


def of_each_rank(span_of: Callable[[Share], float]) -> BoundFunction:
    """Turn a bound on the span of one rank into one value a rank, for either objective.

    The makespan is no less than the earliest start of a rank's first op plus the rank's span.
    """

    @wraps(span_of)
    def values(problem: Problem) -> Floats:
        is_makespan = problem.objective == "makespan"
        return np.array([span_of(s) + is_makespan * s.start for s in problem.shares])

    return values


@of_each_rank
def load(share: Share) -> float:
    """Bound the span by the work: a rank runs one op at a time."""
    return share.load


@of_each_rank
def warm_up(share: Share) -> float:
    """Add the wait before the first B, when a rank can only run the forwards that memory holds.

    With it ZB-H1 is optimal in its memory: the idle time (p-1)(F+B-W) of arXiv 2401.10241,
    section 2, cannot be beaten within p microbatches.
    """
    return share.load + wait_before_first_backward(share)


@of_each_rank
def drain(share: Share) -> float:
    """Add the wait for the last microbatch, when a rank has done all else that memory held.

    The waits before and after the last F cannot overlap, and add up.
    """
    return share.load + wait_before_last_forward(share) + wait_after_last_forward(share)


@of_each_rank
def memory_area(share: Share) -> float:
    """Compare the memory-time that the microbatches need with what the limit offers.

    An activation is held from its F until its B ends, no less than a microbatch alone would
    take, and its kept part until its W ends. Memory fills and empties no faster than by the op
    that is quickest for its size, but for the one activation with which a rank starts and the one
    with which it ends: so height h above the largest activation is in use for (span - h q) at
    most, q being the times to fill and to empty one unit. The area under that is at most
    h span - q (h - largest)^2 / 2 for the height h where this is largest.
    """
    size, kept = share.activation, share.kept
    held = share.earliest_backward - share.earliest_forward + share.backward
    area = share.num_microbatches * float((size * held + kept * share.weight).sum())
    if area == 0:
        return 0.0
    backward = share.backward + share.weight
    to_fill = float((share.forward[size > 0] / size[size > 0]).min())
    to_free = float((backward[size > 0] / size[size > 0]).min())
    if kept.any():
        to_free = min(to_free, float((share.weight[kept > 0] / kept[kept > 0]).min()))
    largest, slope = float(size.max()), to_fill + to_free
    if slope == 0:
        return area / share.limit
    height = max(largest, min(share.limit, float(np.sqrt(largest**2 + 2 * area / slope))))
    return area / height + slope * (height - largest) ** 2 / (2 * height)


@of_each_rank
def slot_area(share: Share) -> float:
    """Compare the slot-time that the microbatches need with the whole slots that memory has.

    For stages of one size that keep something for W. While any W is left, its leftover takes
    room, so the activations held for B, plus one if any W is left, are at most
    n = floor((limit - leftover) / size) + 1, which is floor(limit / size) where the limit is a
    whole number of activations. These n slots must hold each activation from its F until its B
    ends, and give one slot to W while it runs. As F takes at most one more slot, and B and W
    free one, slot k is in use for (span - (k-1) q) at most, q being the shortest F plus the
    shortest B and W.
    """
    size, kept = float(share.activation[0]), float(share.kept.min())
    if (share.activation != size).any() or kept == 0:
        return 0.0
    held = share.earliest_backward - share.earliest_forward + share.backward + share.weight
    area = share.num_microbatches * float(held.sum())
    ramps = float(share.forward.min() + (share.backward + share.weight).min())
    most = share.num_microbatches * share.num_stages
    slots = np.arange(1, int(min(most, np.floor((share.limit - kept) / size) + 1)) + 1)
    return float((area / slots + ramps * (slots - 1) / 2).min())
