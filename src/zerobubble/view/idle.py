"""Why is a rank idle?

Idle time between the first start and the last end of all ranks has exactly one of these causes:

``warm-up``
    the rank has not run an op yet.
``drain``
    the rank has run its last op.
``waits for F of stage 2 on rank 1``
    the next op's input is being computed there, or waits for its own turn there.
``waits for the copy to the host of stage 2``
    the rank has to pass an O whose copy has not ended; the last one to end is named.
``waits for the copy back of stage 2``
    all else is there, and the copy back of what the next op reads has not ended.
``transfer``
    that input is computed and on its way.
``memory limit``
    as ``waits for``, but the rank had a forward with its input there all along that would have
    raised its memory above the limit, and no W that it could have run instead.
``late start``
    rank and input were ready, and the op did not start: only in measured timelines.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes, Kind

if TYPE_CHECKING:
    from zerobubble.view.facts import Facts

COPIES = {Kind.O: "the copy to the host", Kind.L: "the copy back"}
CAUSES = ("warm-up", "drain", "transfer", "memory limit", "late start")
_WARM_UP, _DRAIN, _TRANSFER, _MEMORY, _LATE = range(5)


class Idle(NamedTuple):
    """Idle intervals of all ranks in time order, rank after rank; ``cause`` is for ``Facts.name``.

    A cause from 5 on waits for kind and stage ``divmod(cause - 5, num_stages)``.
    """

    rank: Codes
    start: Floats
    end: Floats
    cause: Codes


def find_idle(facts: "Facts") -> Idle:
    """Find the idle intervals of all ranks with their causes."""
    times = [facts.computed]
    for later in (facts.free, facts.made, facts.input_there, facts.loaded, facts.start):
        later = np.where(facts.is_first, facts.start, later)
        times.append(np.clip(later, times[-1], np.maximum(facts.start, times[-1])))
    one = np.ones_like(facts.codes)
    causes = (
        np.where(facts.is_first, _WARM_UP, _waits_for(facts, facts.waits.turn)),
        np.where(facts.is_held_by_memory, _MEMORY, _waits_for(facts, facts.needs)),
        _TRANSFER * one,
        _waits_for(facts, facts.waits.load),
        _LATE * one,
    )
    places = np.flatnonzero(~facts.is_copy)
    parts = [
        (places, start[places], end[places], cause[places])
        for (start, end), cause in zip(pairwise(times), causes, strict=True)
    ]
    ends = facts.offsets[1:][np.diff(facts.offsets) > 0] - 1
    finish = np.full(len(ends), facts.finish)
    parts.append((ends, facts.end[ends], finish, np.full_like(ends, _DRAIN)))
    place, start, end, cause = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((start, facts.ranks[place]))
    order = order[(end - start > facts.tiny)[order]]
    return Idle(facts.ranks[place][order], start[order], end[order], cause[order])


def _waits_for(facts: "Facts", places: Codes) -> Codes:
    """Give the causes that are waits for the ops at some places."""
    schedule = facts.timeline.schedule
    kinds, stages, _ = schedule.fields(facts.codes[places])
    causes: Codes = len(CAUSES) + kinds * schedule.num_stages + stages
    return causes


def held_by_memory(facts: "Facts") -> NDArray[np.bool_]:
    """Say whether a forward could have run before an op but for the memory limit, and no W."""
    if facts.limits is None:
        return np.zeros(len(facts.codes), dtype=bool)
    kinds = facts.kinds
    forward = _next_true(kinds == Kind.F, facts.offsets)
    is_there = (forward >= 0) & (facts.input_there[forward] <= facts.free + facts.tiny)
    needed = facts.memory_before + facts.memory_changes[forward]
    is_too_much = needed > facts.limits[facts.ranks] * (1 + TOLERANCE)
    changes = (kinds == Kind.B).astype(np.int64) - (kinds == Kind.W)
    parts = np.split(changes, facts.offsets[1:-1])
    waiting = np.concatenate([np.cumsum(part) for part in parts]) - changes
    held: NDArray[np.bool_] = is_there & is_too_much & (waiting == 0)
    return held


def _next_true(flags: NDArray[np.bool_], offsets: Codes) -> Codes:
    """For each place the next place at or after it, in the same part, whose flag is set, or -1."""
    size = len(flags)
    places = np.where(flags, np.arange(size), size)
    following = np.minimum.accumulate(places[::-1])[::-1]
    ends = np.repeat(offsets[1:], np.diff(offsets))
    return np.where(following < ends, following, -1)
