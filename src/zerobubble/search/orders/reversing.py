"""Which op does a rank run next if time runs backwards? List scheduling from the end.

Everything is mirrored: a rank begins with the W of the last microbatch, which allocates what it
needs, goes on with its B, which allocates the rest, and its F frees both. An order found this way
puts every op as late as the priorities allow, which shows how late it may be.
"""

from typing import NamedTuple

import numpy as np

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes, Kind
from zerobubble.jit import hot
from zerobubble.search.orders.arrangement import USUAL_NUMBER_OF_RUNS
from zerobubble.search.orders.heap import heap_size, pop, push
from zerobubble.search.orders.instance import Instance, instance_of
from zerobubble.search.problem import Problem

_NEVER = np.inf
_F, _B, _W, _NONE = int(Kind.F), int(Kind.B), int(Kind.W), -1


class Latest(NamedTuple):
    """What has been placed so far, from the end; times grow towards the beginning.

    Attributes:
        start: start of every op in reversed time, by code: its end in time, from the last end on.
        end_f, end_b: reversed end of F and B, by stage and microbatch.
        num_f, num_b, num_w: how many have been placed, by stage.
        free, memory, wake: as in list scheduling, by rank.
        positions: how many ops have been placed, by rank.
        heap_times, heap_ranks: when to look at a rank again.
        orders: op codes of rank 0 in forward order, then rank 1, ...
    """

    start: Floats
    end_f: Floats
    end_b: Floats
    num_f: Codes
    num_b: Codes
    num_w: Codes
    free: Floats
    memory: Floats
    wake: Floats
    positions: Codes
    heap_times: Floats
    heap_ranks: Codes
    orders: Codes


def list_ops_backwards(
    problem: Problem, priorities: Floats, offsets: Floats, patience: float
) -> tuple[Codes, Floats] | None:
    """Arrange the ops from the end; give their codes in forward order and reversed starts.

    Args:
        problem: what is arranged.
        priorities: of every op by code; smaller is placed first, so later in time.
        offsets: reversed time at which each rank begins.
        patience: an op is put off for a better one that arrives within this share of its time.

    Returns:
        None if the ranks wait for memory in a circle, which the mirrored admission rule does not
        exclude.
    """
    state = _fresh(problem, offsets)
    work = USUAL_NUMBER_OF_RUNS * problem.num_ops
    num_placed = place_all_backwards(instance_of(problem), priorities, patience, state, work=work)
    return (state.orders, state.start) if num_placed == problem.num_ops else None


def _fresh(problem: Problem, offsets: Floats) -> Latest:
    num_stages, num_ranks = problem.placement.num_stages, problem.placement.num_ranks
    num_pairs, size = num_stages * problem.num_microbatches, heap_size(num_ranks)
    return Latest(
        start=np.zeros(problem.num_ops),
        end_f=np.full(num_pairs, _NEVER),
        end_b=np.full(num_pairs, _NEVER),
        num_f=np.zeros(num_stages, np.int64),
        num_b=np.zeros(num_stages, np.int64),
        num_w=np.zeros(num_stages, np.int64),
        free=offsets.copy(),
        memory=np.zeros(num_ranks),
        wake=np.full(num_ranks, _NEVER),
        positions=np.zeros(num_ranks, np.int64),
        heap_times=np.zeros(size),
        heap_ranks=np.zeros(size, np.int64),
        orders=np.zeros(problem.num_ops, np.int64),
    )


@hot
def place_all_backwards(
    problem: Instance, priorities: Floats, patience: float, state: Latest
) -> int:
    """Place ops until none can be; return how many were placed."""
    size = 0
    for rank in range(len(state.free)):
        state.wake[rank] = state.free[rank]
        size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
    num_placed = 0
    while size > 0:
        time, rank = state.heap_times[0], state.heap_ranks[0]
        size = pop(state.heap_times, state.heap_ranks, size)
        if time != state.wake[rank]:
            continue
        state.wake[rank] = _NEVER
        now = max(time, state.free[rank])
        kind, stage, again = choose_backwards(problem, priorities, patience, state, rank, now)
        if kind == _NONE:
            if again < state.wake[rank]:
                state.wake[rank] = again
                size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
            continue
        end = place_backwards(problem, state, rank, now, kind, stage)
        num_placed += 1
        state.wake[rank] = end
        size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
        reader, arrival = -1, end
        if kind == _F and stage > 0:
            reader, arrival = problem.holders[stage - 1], end + problem.travel[stage - 1]
        elif kind == _B and stage + 1 < len(problem.forward):
            # Its W can be placed before the input of that B arrives.
            reader = problem.holders[stage + 1]
            arrival = end + problem.travel[stage] - problem.weight[stage + 1]
        if reader >= 0 and reader != rank:
            arrival = max(arrival, state.free[reader])
            if arrival < state.wake[reader]:
                state.wake[reader] = arrival
                size = push(state.heap_times, state.heap_ranks, state.wake, size, reader)
    return num_placed


@hot
def choose_backwards(
    problem: Instance, priorities: Floats, patience: float, state: Latest, rank: int, now: float
) -> tuple[int, int, float]:
    """Pick the op that a rank places now, or none and the time at which to look again."""
    kind, stage, key = _NONE, -1, _NEVER
    later, better_key, better_time = _NEVER, _NEVER, _NEVER
    num_microbatches, num_stages = problem.num_microbatches, len(problem.forward)
    limit = problem.limits[rank] * (1 + TOLERANCE)
    for index in range(problem.offsets[rank], problem.offsets[rank + 1]):
        s = problem.stages[index]
        if state.num_f[s] < state.num_b[s]:
            i = num_microbatches - 1 - state.num_f[s]
            arrival = state.end_b[s * num_microbatches + i]
            if s + 1 < num_stages:
                arrival = state.end_f[(s + 1) * num_microbatches + i] + problem.travel[s]
            if arrival < _NEVER:
                this_key = priorities[s * num_microbatches + i]
                if arrival <= now + TOLERANCE:
                    if this_key < key:
                        kind, stage, key = _F, s, this_key
                else:
                    later = min(later, arrival)
                    if this_key < better_key:
                        better_key, better_time = this_key, arrival
        if state.num_b[s] == num_microbatches:
            continue
        i = num_microbatches - 1 - state.num_b[s]
        has_w = state.num_w[s] > state.num_b[s]
        needed = problem.held[s]
        if has_w:
            needed -= problem.kept[s]
        arrival = 0.0
        if s > 0:
            arrival = state.end_b[(s - 1) * num_microbatches + i] + problem.travel[s - 1]
        fits = arrival < _NEVER and state.memory[rank] + needed <= limit
        if fits and may_allocate(problem, state, rank, index, _B):
            this_key = priorities[(_B * num_stages + s) * num_microbatches + i]
            if not has_w:  # its W goes first, in time for it
                arrival -= problem.weight[s]
                if arrival <= now + TOLERANCE:
                    if this_key < key:
                        kind, stage, key = _W, s, this_key
                else:
                    later = min(later, arrival)
            elif arrival <= now + TOLERANCE:
                if this_key < key:
                    kind, stage, key = _B, s, this_key
            else:
                later = min(later, arrival)
                if this_key < better_key:
                    better_key, better_time = this_key, arrival
        j = state.num_w[s]
        if j == num_microbatches or state.memory[rank] + problem.kept[s] > limit:
            continue
        this_key = priorities[(_W * num_stages + s + 1) * num_microbatches - 1 - j]
        if this_key < key and may_allocate(problem, state, rank, index, _W):
            kind, stage, key = _W, s, this_key
    if kind == _NONE:
        return _NONE, -1, later
    if better_key < key:
        duration = problem.weight[stage]
        if kind == _F:
            duration = problem.forward[stage]
        elif kind == _B:
            duration = problem.backward[stage]
        # Clearly less, as in list scheduling.
        if better_time - now < min(1.0, patience) * duration - TOLERANCE:
            return _NONE, -1, better_time
    return kind, stage, 0.0


@hot
def may_allocate(problem: Instance, state: Latest, rank: int, index: int, kind: int) -> bool:
    """Say whether a B or W of one of a rank's stages leaves enough room for those still to come.

    As in list scheduling: for every deeper stage q with backwards to place, what the shallower
    stages are ahead of q, one microbatch through q and all deeper stages, and what W have
    allocated ahead of their B, must fit in the limit.
    """
    stage = problem.stages[index]
    first, end = problem.offsets[rank], problem.offsets[rank + 1]
    room = problem.limits[rank] * (1 + TOLERANCE)
    shallower, done, deeper = 0.0, 0.0, 0.0  # held by those stages for one microbatch, for all B
    for other in range(first, end):
        u = problem.stages[other]
        room -= problem.kept[u] * (state.num_w[u] - state.num_b[u])
        deeper += problem.held[u]
    has_w = state.num_w[stage] > state.num_b[stage]
    needed = problem.kept[stage]
    if kind == _B:
        needed = problem.held[stage]
        if has_w:
            needed -= problem.kept[stage]
    for other in range(first, end):
        q = problem.stages[other]
        if other >= index and state.num_b[q] < problem.num_microbatches:
            more = done - shallower * state.num_b[q] + deeper
            if state.num_w[q] > state.num_b[q]:
                more -= problem.kept[q]
            # Its own first W, and its B, are part of one microbatch through the stage.
            is_own = other == index and (kind == _B or not has_w)
            if not is_own:
                more += needed
            if more > room and not (other == index and kind == _B):
                return False
        shallower += problem.held[q]
        done += problem.held[q] * state.num_b[q]
        deeper -= problem.held[q]
    return True


@hot
def place_backwards(
    problem: Instance, state: Latest, rank: int, now: float, kind: int, stage: int
) -> float:
    """Place an op on a rank from now on; return its end in reversed time."""
    num_microbatches, num_stages = problem.num_microbatches, len(problem.forward)
    if kind == _F:
        i, end = num_microbatches - 1 - state.num_f[stage], now + problem.forward[stage]
        state.num_f[stage] += 1
        state.memory[rank] -= problem.held[stage]
        state.end_f[stage * num_microbatches + i] = end
    elif kind == _B:
        i, end = num_microbatches - 1 - state.num_b[stage], now + problem.backward[stage]
        state.num_b[stage] += 1
        state.memory[rank] += problem.held[stage] - problem.kept[stage]
        state.end_b[stage * num_microbatches + i] = end
    else:
        i, end = num_microbatches - 1 - state.num_w[stage], now + problem.weight[stage]
        state.num_w[stage] += 1
        state.memory[rank] += problem.kept[stage]
    code = (kind * num_stages + stage) * num_microbatches + i
    state.positions[rank] += 1
    last = 3 * num_microbatches * problem.offsets[rank + 1]
    state.orders[last - state.positions[rank]] = code
    state.start[code] = now
    state.free[rank] = end
    return float(end)
