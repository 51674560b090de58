"""When do copies run beside the times that the compute has?

Those to the host as soon as their F has ended and their engine is free, those back as late as
their B allows. What would be back before it has left stays on the device.
"""

from dataclasses import dataclass

import numpy as np

from zerobubble.copies.pairs import backwards
from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.ir import Codes, Flags, Kind, Schedule
from zerobubble.jit import hot
from zerobubble.simulate import Timeline


@dataclass(frozen=True)
class Plan:
    """What moves and when, by stage and microbatch in one row: as if compute never waited."""

    is_moved: Flags
    offload_end: Floats
    load_start: Floats


def times_by_code(timeline: Timeline) -> tuple[Floats, Floats]:
    """Tabulate start and end of every op by its code."""
    schedule = timeline.schedule
    start, end = np.zeros((2, len(Kind) * schedule.num_stages * schedule.num_microbatches))
    for rank, order in enumerate(schedule.orders):
        start[order], end[order] = timeline.start[rank], timeline.end[rank]
    return start, end


def planned(
    schedule: Schedule, costs: Costs, chosen: Flags, positions: Codes, start: Floats, end: Floats
) -> Plan:
    """Give every copy its time: as early as its engine allows to the host, as late as B back.

    Where ranks share an engine, a copy may have to wait for one of another rank first.
    """
    pair = chosen.size
    rows = np.repeat(np.arange(schedule.num_stages), schedule.num_microbatches)
    engines = np.asarray(schedule.placement.stage_to_rank)[rows] // costs.ranks_per_engine
    begins, backward = backwards(schedule, start), backwards(schedule, positions)
    is_shared = costs.ranks_per_engine > 1
    deadlines = begins - is_shared * costs.load.max()
    by_forward = np.lexsort((positions[:pair], end[:pair]))
    by_backward = np.lexsort((backward, begins))[::-1]
    is_moved = chosen.reshape(-1).astype(np.int64)
    load_start = deadlines - costs.load[rows]
    offload_end = end[:pair] + costs.offload[rows]
    slack = TOLERANCE * float(end.max(initial=0.0))
    for ready in (offload_end.copy(), offload_end):
        loads = (engines, deadlines, costs.load[rows], ready - slack, is_moved, load_start)
        _plan_loads(
            by_backward, *loads, np.full(schedule.num_ranks, np.inf), work=pair, adds_up=True
        )
        offloads = (engines, end[:pair], costs.offload[rows], load_start + slack, is_moved)
        _plan_offloads(
            by_forward,
            *offloads,
            offload_end,
            np.zeros(schedule.num_ranks),
            work=pair,
            adds_up=True,
        )
    waits = is_shared * costs.offload.max()
    return Plan(is_moved.astype(bool), offload_end + waits, load_start)


@hot
def _plan_loads(
    pairs: Codes,
    engines: Codes,
    deadlines: Floats,
    durations: Floats,
    ready: Floats,
    is_moved: Codes,
    load_start: Floats,
    taken_from: Floats,
) -> None:
    """Start each copy back as late as B and the copies behind it allow; keep what is not ready."""
    for pair in pairs:
        if is_moved[pair]:
            engine = engines[pair]
            begin = min(deadlines[pair], taken_from[engine]) - durations[pair]
            if begin < ready[pair]:
                is_moved[pair] = 0
            else:
                load_start[pair] = taken_from[engine] = begin


@hot
def _plan_offloads(
    pairs: Codes,
    engines: Codes,
    ready: Floats,
    durations: Floats,
    load_start: Floats,
    is_moved: Codes,
    offload_end: Floats,
    free: Floats,
) -> None:
    """Copy to the host one after the other; keep what would be back before it has left."""
    for pair in pairs:
        if is_moved[pair]:
            engine = engines[pair]
            ends = max(ready[pair], free[engine]) + durations[pair]
            if ends > load_start[pair]:
                is_moved[pair] = 0
            else:
                offload_end[pair] = free[engine] = ends
