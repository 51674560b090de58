"""Which pairs of stage and microbatch leave the device, and what do tables by code tell of them?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Codes, Flags, Kind, Schedule


@dataclass(frozen=True)
class Pairs:
    """The pairs of stage and microbatch on one rank that may move, in the order of their F.

    A gap is named by the op behind it. ``offload`` and ``load`` are the gaps of O and L;
    ``forward`` and ``backward`` the places of F and B (or BW).
    """

    pairs: Codes
    forward: Codes
    backward: Codes
    offload: Codes
    load: Codes
    is_moved: Flags
    sizes: Floats


def pairs_of_rank(
    schedule: Schedule, costs: Costs, chosen: Flags, positions: Codes, rank: int
) -> Pairs:
    """List what may move on a rank; as yet it all stays."""
    kinds, stages, microbatches = schedule.fields(schedule.orders[rank])
    forward = np.flatnonzero((kinds == Kind.F) & chosen[stages, microbatches])
    pairs, none = schedule.orders[rank][forward], np.zeros_like(forward)
    backward = backwards(schedule, positions)[pairs]
    sizes = costs.activation_offloaded[stages[forward]]
    return Pairs(pairs, forward, backward, none, none.copy(), none.astype(bool), sizes)


def by_pair(schedule: Schedule, flags: NDArray[Any], name: str) -> Flags:
    """Give a flag for each stage and microbatch, from these or from one for each stage."""
    given = np.asarray(flags)
    shape = (schedule.num_stages, schedule.num_microbatches)
    if given.dtype != bool or given.shape not in (shape, shape[:1]):
        raise UsageError(
            f"{schedule.name}: {name} must be true or false for each of {shape[0]} stages, or of "
            f"{shape[0]} x {shape[1]} stages and microbatches, not {given.dtype} of {given.shape}"
        )
    by_pair: Flags = np.array(np.broadcast_to(given.reshape(shape[0], -1), shape))
    return by_pair


def refuse_taken(schedule: Schedule, is_taken: Flags) -> None:
    """Refuse what has a way back already."""
    for stage, i in np.argwhere(is_taken)[:1].tolist():
        raise ScheduleError(
            f"{schedule.name}: rank {schedule.placement.stage_to_rank[stage]}: microbatch {i} of "
            f"stage {stage} is offloaded or run again already: give an order without"
        )


def backwards(schedule: Schedule, by_code: NDArray[Any]) -> NDArray[Any]:
    """Give what a table by code tells of the BW of every stage and microbatch, or of its B."""
    pair = schedule.num_stages * schedule.num_microbatches
    is_fused = schedule.has(Kind.BW).reshape(-1)
    both = (by_code[kind * pair : (kind + 1) * pair] for kind in (Kind.BW, Kind.B))
    return np.where(is_fused, *both)


def codes_of(schedule: Schedule, kind: Kind, codes: Codes) -> Codes:
    """Give the codes of the same stages and microbatches for another kind."""
    pair = schedule.num_stages * schedule.num_microbatches
    return kind * pair + codes % pair


def with_orders(schedule: Schedule, orders: list[Codes]) -> Schedule:
    """Copy the schedule with other orders."""
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(orders))
