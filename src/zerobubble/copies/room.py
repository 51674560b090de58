"""How is a memory limit kept by the order of a rank, however fast its copies are?"""

from collections import deque
from heapq import heappop, heappush

import numpy as np

from zerobubble.copies.pairs import Pairs, pairs_of_rank
from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import ScheduleError
from zerobubble.graph import places
from zerobubble.ir import Codes, Flags, Schedule


def require_least_memory(schedule: Schedule, costs: Costs, chosen: Flags, limits: Floats) -> None:
    """Refuse limits that no copies keep.

    Raises:
        ScheduleError: naming the rank that exceeds its limit by most, its op, and the least limit.
    """
    least, highest = least_memory(schedule, costs, chosen)
    over = least - limits * (1 + TOLERANCE)
    if over.max() > 0:
        rank = int(over.argmax())
        raise ScheduleError(
            f"{schedule.name}: rank {rank}: {schedule.op(highest[rank])} raises activation memory "
            f"to {least[rank]:g} even with all offloaded that may be, over the limit of "
            f"{limits[rank]:g}: allow {least.max():.12g}, the least that this order can be brought "
            "to"
        )


def least_memory(schedule: Schedule, costs: Costs, chosen: Flags) -> tuple[Floats, Codes]:
    """Give the peak of each rank, and its op, if all leaves at once and comes back at the last."""
    least, positions = np.zeros(schedule.num_ranks), places(schedule)[1]
    highest = np.zeros(schedule.num_ranks, dtype=np.int64)
    for rank, order in enumerate(schedule.orders):
        its = pairs_of_rank(schedule, costs, chosen, positions, rank)
        changes = costs.memory_changes_of(schedule, rank)
        after = changes.copy()
        after[its.forward] -= its.sizes
        after[its.backward] += its.sizes
        level = np.cumsum(after) + np.maximum(-changes, 0.0)
        level[its.forward] += its.sizes
        highest[rank], least[rank] = order[level.argmax()], level.max()
    return least, highest


def pull_offloads(its: Pairs, changes: Floats, limit: float) -> Flags:
    """Move O in front of the ops that would exceed the limit, in ``its``; tell which pairs' it was.

    For these the compute waits. First go those under way, in their order; then those that were to
    stay, the one first whose B is last. Copies back are taken to be as late as can be.
    """
    is_pulled = np.zeros(len(its.pairs), dtype=bool)
    sizes = its.sizes.tolist()
    at_forward = dict(zip(its.forward.tolist(), range(len(sizes)), strict=True))
    at_backward = dict(zip(its.backward.tolist(), range(len(sizes)), strict=True))
    leaving: deque[int] = deque()
    staying: list[tuple[int, int]] = []
    held = 0.0
    for place, change in enumerate(changes.tolist()):
        while leaving and its.offload[leaving[0]] <= place:
            held -= sizes[leaving.popleft()]
        own = at_backward.get(place, -1)
        back = sizes[own] if own >= 0 and its.is_moved[own] else 0.0
        while held + back + max(change, 0.0) > limit and (leaving or staying):
            if leaving:
                pulled = leaving.popleft()
            else:
                later, pulled = heappop(staying)
                if -later <= place:
                    break
            its.is_moved[pulled] = is_pulled[pulled] = True
            its.offload[pulled] = place
            held -= sizes[pulled]
        held += back + change
        if (new := at_forward.get(place, -1)) >= 0:
            if its.is_moved[new]:
                leaving.append(new)
            else:
                heappush(staying, (-int(its.backward[new]), new))
    return is_pulled


def load_in_time(its: Pairs, changes: Floats, limit: float) -> None:
    """Put L where it was planned, or as soon behind as the limit allows; first what B needs first.

    Raises nothing: right before its B there is room, as ``pull_offloads`` sees to.
    """
    moved = np.flatnonzero(its.is_moved)
    in_gaps = np.zeros(len(changes))
    np.subtract.at(in_gaps, its.offload[moved], its.sizes[moved])
    np.add.at(in_gaps, its.backward[moved], its.sizes[moved])
    level = np.cumsum(in_gaps + changes) + np.maximum(-changes, 0.0)
    previous = 0
    for own in moved[np.argsort(its.backward[moved])].tolist():
        gap, end = max(int(its.load[own]), int(its.offload[own]) + 1, previous), its.backward[own]
        full = np.flatnonzero(level[gap:end] + its.sizes[own] > limit)
        previous = gap = gap + int(full[-1]) + 1 if full.size else gap
        level[gap:end] += its.sizes[own]
        its.load[own] = gap
