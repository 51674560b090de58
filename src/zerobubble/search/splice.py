"""How is a schedule for few microbatches extended to many?

Between its warm-up and its end every rank repeats the same pattern, D microbatches further on each
time. More copies of one such period give a schedule for more microbatches.
"""

import numpy as np
from numpy.typing import NDArray

from zerobubble.errors import UsageError
from zerobubble.ir import Codes, Kind, Schedule

# Longest period that is looked for, in microbatches.
_LONGEST_PERIOD = 4


def splice(schedule: Schedule, num_microbatches: int) -> Schedule | None:
    """Extend a schedule to more microbatches by copies of the period of every rank.

    If the schedule obeys the rules, every rank of the longer one has each op once, in an order that
    is right for the rank alone, and the same peak memory. The ranks may yet wait for each other in
    a circle, or longer in every copy: ``zerobubble.verify`` and ``zerobubble.simulate`` tell.

    Args:
        schedule: whose backwards are all split into B and W; it obeys the rules.
        num_microbatches: of the longer schedule, at least as many as this one has.

    Returns:
        The longer schedule under the same name; None if a backward is not split, or if no period of
        1 to 4 microbatches that divides the added ones is repeated on every rank.

    Raises:
        UsageError: there are fewer microbatches than the schedule has.

    >>> from zerobubble import build
    >>> splice(build("zb-h1", 4, 12), 32) == build("zb-h1", 4, 32)
    True
    """
    num_added = num_microbatches - schedule.num_microbatches
    if num_added < 0:
        raise UsageError(
            f"{schedule.name} has {schedule.num_microbatches} microbatches: give at least as "
            f"many, not {num_microbatches}"
        )
    if not _is_split(schedule):
        return None
    for period in range(1, min(_LONGEST_PERIOD, schedule.num_microbatches // 2) + 1):
        if num_added % period:
            continue
        cuts = _cuts(schedule, period)
        if cuts is not None:
            orders = (
                _extended(schedule, order, cut, period, num_added // period)
                for order, cut in zip(schedule.orders, cuts, strict=True)
            )
            return Schedule(schedule.name, schedule.placement, num_microbatches, tuple(orders))
    return None


def _is_split(schedule: Schedule) -> bool:
    first_fused = Kind.BW * schedule.num_stages * schedule.num_microbatches
    return all(order.max(initial=0) < first_fused for order in schedule.orders)


def _cuts(schedule: Schedule, period: int) -> list[int] | None:
    """Say where each rank's order can be cut; None if one of them has no such period.

    The longest run of ops is sought that come again one period later, so many microbatches on.
    If it is as long as a period, that holds equally many ops of every kind and stage, and where in
    the run copies are inserted makes no difference.
    """
    cuts = []
    for order in schedule.orders:
        num_ops = len(order) // schedule.num_microbatches * period
        # A code that is larger by the period is of the same kind and stage: if it were among the
        # first of the next one, these would be missing in the period before.
        again = order[num_ops:] - order[: len(order) - num_ops] == period
        begin, end = _longest_run(again)
        if end - begin < max(1, num_ops):
            return None
        cuts.append(begin)
    return cuts


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Give the begin and end of the first longest run of true values; (0, 0) if there is none."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    if not len(edges):
        return 0, 0
    longest = 2 * int(np.argmax(edges[1::2] - edges[::2]))
    return int(edges[longest]), int(edges[longest + 1])


def _extended(schedule: Schedule, order: Codes, cut: int, period: int, num_copies: int) -> Codes:
    """Insert copies of the period that begins at a cut; what follows is that much later."""
    num_added = period * num_copies
    num_ops = len(order) // schedule.num_microbatches * period
    longer = np.empty(len(order) + num_copies * num_ops, dtype=np.int64)
    codes = order + order // schedule.num_microbatches * num_added
    copies = longer[cut : cut + num_copies * num_ops].reshape(num_copies, num_ops)
    shifts = period * np.arange(num_copies)
    longer[:cut] = codes[:cut]
    np.add(codes[cut : cut + num_ops], shifts[:, None], out=copies)
    np.add(codes[cut:], num_added, out=longer[cut + num_copies * num_ops :])
    return longer
