"""How short can the span of one rank be at best, by its work and its memory alone?"""

from collections.abc import Callable
from functools import wraps

import numpy as np

from zerobubble.costs import Floats
from zerobubble.search.bounds.fitting import (
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
    largest = float(share.activation.max())
    if largest == 0:
        return 0.0
    # In activations of the largest stage, whose square might else be too small for a number.
    size, kept, limit = share.activation / largest, share.kept / largest, share.limit / largest
    held = share.earliest_backward - share.earliest_forward + share.backward
    area = share.num_microbatches * float((size * held + kept * share.weight).sum())
    if area == 0:
        return 0.0
    backward = share.backward + share.weight
    to_fill = float((share.forward[size > 0] / size[size > 0]).min())
    to_free = float((backward[size > 0] / size[size > 0]).min())
    if kept.any():
        to_free = min(to_free, float((share.weight[kept > 0] / kept[kept > 0]).min()))
    slope = to_fill + to_free
    if slope == 0:
        return area / limit
    height = max(1.0, min(limit, float(np.sqrt(1 + 2 * area / slope))))
    return area / height + slope * (height - 1) ** 2 / (2 * height)


@of_each_rank
def slot_area(share: Share) -> float:
    """Compare the slot-time that the microbatches need with the whole slots that memory has.

    An activation takes a slot from its F until its B ends; floor(limit / smallest) fit. After the
    last B a W follows. Or count W in: while any W is left, its leftover takes room, so the
    activations held for B, plus one if any W is left, are at most
    floor((limit - leftover) / smallest) + 1, which is no more slots where the limit is a whole
    number of activations. These slots then also hold each W while it runs.
    """
    held = share.earliest_backward - share.earliest_forward + share.backward
    to_fill, to_free = float(share.forward.min()), float(share.backward.min())
    last_weight = float(share.weight.min())
    without_weights = _time_in_slots(share, share.limit, held, to_fill + to_free) + last_weight
    to_free = float((share.backward + share.weight).min())
    room = share.limit - float(share.kept.min()) + float(share.activation.min())
    return max(without_weights, _time_in_slots(share, room, held + share.weight, to_fill + to_free))


def _time_in_slots(share: Share, room: float, held: Floats, ramp: float) -> float:
    """Give the least time in which slots hold every stage of every microbatch for so long.

    An F takes at most one more slot and a backward frees one, so slot k is in use for
    (time - (k-1) ramp) at most, the ramp being the shortest of both together.
    """
    size, most = float(share.activation.min()), share.num_microbatches * share.num_stages
    number = max(1, int(room / size)) if size * most > room else most
    slots = np.arange(1, number + 1)
    area = share.num_microbatches * float(held.sum())
    return float((area / slots + ramp * (slots - 1) / 2).min())
