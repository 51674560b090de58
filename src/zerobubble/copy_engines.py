"""When do ops and copies run, if copies take turns on the engines of their ranks?

Every O and L is two events: its place in the order of its rank, to which the compute comes, and the
copy itself. The copy of O stands right behind its F, and that of L right behind its place.
"""

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot

_B, _BW, _O, _L = int(Kind.B), int(Kind.BW), int(Kind.O), int(Kind.L)


def run_beside_copies(
    schedule: Schedule,
    ranks_per_engine: int,
    order: Codes,
    tables: tuple[Codes, int, Codes, Floats, Floats],
    start: Floats,
    end: Floats,
) -> None:
    """Give every op its start and end; ``tables`` are those of ``simulate.run_in_order``.

    Where ranks share an engine, their copies take turns in the order in which they would start if
    none were shared. No event is earlier than what it comes after, so that order has no circles.
    """
    events = _events(schedule, order)
    is_loaded = schedule.has(Kind.L).reshape(-1)
    ranks = np.arange(schedule.num_ranks)
    times = np.zeros(2 * schedule.num_codes)
    for engines in (ranks, ranks // ranks_per_engine):
        free, free_engines = np.zeros(schedule.num_ranks), np.zeros(2 * schedule.num_ranks)
        state = (free, engines, free_engines, is_loaded, times, start, end)
        _run_events(events, *tables, *state, work=len(events), adds_up=True)
        if ranks_per_engine == 1:
            return
        events = events[np.argsort(times[events], kind="stable")]


def _events(schedule: Schedule, order: Codes) -> Codes:
    """Put every copy behind what lets it begin: its code is that of its op and ``num_codes``."""
    offload, load = (schedule.by_kind(np.arange(schedule.num_codes))[k] for k in (Kind.O, Kind.L))
    copies = np.full(schedule.num_codes, -1)
    by_kind = schedule.by_kind(copies)
    by_kind[Kind.F] = np.where(schedule.has(Kind.O), offload, -1)
    by_kind[Kind.L] = load
    starts_copy = np.flatnonzero(copies[order] >= 0)
    its = copies[order[starts_copy]] + schedule.num_codes
    events: Codes = np.insert(order, starts_copy + 1, its)
    return events


@hot
def _run_events(
    events: Codes,
    needs: Codes,
    num_microbatches: int,
    ranks: Codes,
    durations: Floats,
    travels: Floats,
    free: Floats,
    engines: Codes,
    free_engines: Floats,
    is_loaded: Codes,
    times: Floats,
    start: Floats,
    end: Floats,
) -> None:
    """Give every op its start and end, and every event its time.

    ``engines`` tells the number of the engines of each rank, of which there are two: one for O,
    free again at ``free_engines`` of twice that number, and behind it one for L. ``is_loaded`` is
    by stage and microbatch.
    """
    pair = len(is_loaded)
    for event in events:
        code = event % len(start)
        row, kind, own = code // num_microbatches, code // pair, code % pair
        rank = ranks[row]
        begin = free[rank]
        if event >= len(start):
            engine = 2 * engines[rank] + (kind == _L)
            begin = max(end[needs[code]], free_engines[engine])
            if kind == _L:
                begin = max(begin, times[code])
            times[event] = start[code] = begin
            end[code] = free_engines[engine] = begin + durations[row]
            continue
        if kind == _O:
            free[rank] = times[event] = max(begin, end[code])
            continue
        if kind == _L:
            times[event] = begin
            continue
        if needs[code] >= 0:
            begin = max(begin, end[needs[code]] + travels[row])
        if kind in (_B, _BW) and is_loaded[own]:
            begin = max(begin, end[_L * pair + own])
        times[event] = start[code] = begin
        end[code] = free[rank] = begin + durations[row]
