"""How are forwards run again, and copies left out?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobubble.copies.pairs import by_pair, codes_of, refuse_taken, with_orders
from zerobubble.ir import Kind, Schedule


def with_recompute(schedule: Schedule, again: NDArray[Any]) -> Schedule:
    """Run forwards again right before their backwards.

    Args:
        schedule: an order of F, B, W, BW, and maybe O and L of other microbatches.
        again: which stages and microbatches: shape (stages, microbatches), or (stages,).

    Raises:
        UsageError: ``again`` has another shape.
        ScheduleError: one of them is offloaded, or run again, already.

    >>> from zerobubble import build
    >>> [str(op) for op in with_recompute(build("1f1b", 1, 1), np.array([True])).ops(0)]
    ['F0 of stage 0', 'R0 of stage 0', 'BW0 of stage 0']
    """
    chosen = by_pair(schedule, again, "again")
    refuse_taken(schedule, chosen & (schedule.has(Kind.O) | schedule.has(Kind.R)))
    orders = []
    for order in schedule.orders:
        kinds, stages, microbatches = schedule.fields(order)
        is_backward = (kinds == Kind.B) | (kinds == Kind.BW)
        where = np.flatnonzero(is_backward & chosen[stages, microbatches])
        orders.append(np.insert(order, where, codes_of(schedule, Kind.R, order[where])))
    return with_orders(schedule, orders)


def without_copies(schedule: Schedule) -> Schedule:
    """Leave everything on the device: the order without O and L.

    >>> from zerobubble import build
    >>> without_copies(build("po-f", 2, 4)).has_copies
    False
    """
    orders = []
    for order in schedule.orders:
        kinds, _, _ = schedule.fields(order)
        orders.append(order[(kinds != Kind.O) & (kinds != Kind.L)])
    return with_orders(schedule, orders)
