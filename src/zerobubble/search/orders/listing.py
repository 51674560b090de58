"""Which op does a rank run next? List scheduling under priorities, caps and memory limits.

Time goes forward from event to event. A rank that is free takes, among the ops whose input is
there, the one with the smallest key; an F only if the admission rule allows it, which is exact for
microbatches in order: no choice can then lead to a deadlock or above the limit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes, Kind
from zerobubble.jit import hot
from zerobubble.search.orders.arrangement import USUAL_NUMBER_OF_RUNS, Arrangement, arrange
from zerobubble.search.orders.heap import heap_size, pop, push
from zerobubble.search.orders.instance import Instance, instance_of
from zerobubble.search.problem import Problem

UNCAPPED = 2**40
_NEVER = np.inf
_F, _B, _W, _NONE = int(Kind.F), int(Kind.B), int(Kind.W), -1
_TOO_IDLE = -1


class Preferences(NamedTuple):
    """What decides between ops that could run.

    Attributes:
        keys: of every op, by code; smaller goes first.
        caps: how many microbatches of a stage may be between F and B.
        warm_caps: the same before the rank's first B.
        patience: a lesser op is put off for a better one that arrives within this share of its
            time.
        leeway: ... and only if the better one's key is below the lesser one's end by less than
            this: 0 where keys are the latest starts, infinite where they are no times.
        makes_room: 1 if a W goes first when an F only waits for memory, before its input is there
            too; 0 if only then.
        budgets: total idle time that each rank may spend on waiting for better ops; -1 for none.
    """

    keys: Floats
    caps: Codes
    warm_caps: Codes
    patience: float
    leeway: float
    makes_room: float
    budgets: Floats


class State(NamedTuple):
    """What has been placed so far; ``orders`` holds the op codes of rank 0, then rank 1, ...

    ``idle`` counts the time that each rank has waited between its ops, and above ``most_idle``
    there is no use in going on.
    """

    end_f: Floats
    end_b: Floats
    num_f: Codes
    num_b: Codes
    num_w: Codes
    free: Floats
    idle: Floats
    most_idle: Floats
    memory: Floats
    positions: Codes
    begun_backward: Codes
    wake: Floats
    heap_times: Floats
    heap_ranks: Codes
    orders: Codes


def keys_of(problem: Problem, of_stages: ArrayLike, period: float) -> Floats:
    """Tabulate keys that a microbatch adds ``period`` to; first those of F, of B and of W."""
    later = period * np.arange(problem.num_microbatches)
    table: Floats = np.add.outer(np.asarray(of_stages, dtype=np.float64), later).reshape(-1)
    return table


def list_ops(
    problem: Problem, preferences: Preferences, worst: float = np.inf
) -> Arrangement | None:
    """Arrange the ops as the preferences lead to, within the memory limits.

    Every rank can hold one microbatch through all its stages; that is for the caller to check.
    None is given as soon as a rank has waited so long that the objective is larger than ``worst``;
    the order might then have been pulled forward by what was waited for in vain, which is little.
    """
    state = _fresh(problem, worst)
    work = USUAL_NUMBER_OF_RUNS * problem.num_ops
    num_placed = place_all(instance_of(problem), preferences, state, work=work)
    if num_placed == _TOO_IDLE:
        return None
    assert num_placed == problem.num_ops, "the admission rule excludes deadlocks"
    arrangement = arrange(problem, state.orders)
    assert arrangement is not None, "ops are placed in the order of time"
    return arrangement


def _fresh(problem: Problem, worst: float) -> State:
    num_stages, num_ranks = problem.placement.num_stages, problem.placement.num_ranks
    num_pairs, size = num_stages * problem.num_microbatches, heap_size(num_ranks)
    return State(
        end_f=np.full(num_pairs, _NEVER),
        end_b=np.full(num_pairs, _NEVER),
        num_f=np.zeros(num_stages, np.int64),
        num_b=np.zeros(num_stages, np.int64),
        num_w=np.zeros(num_stages, np.int64),
        free=np.zeros(num_ranks),
        idle=np.zeros(num_ranks),
        most_idle=_most_idle(problem, worst),
        memory=np.zeros(num_ranks),
        positions=np.zeros(num_ranks, np.int64),
        begun_backward=np.zeros(num_ranks, np.int64),
        wake=np.full(num_ranks, _NEVER),
        heap_times=np.zeros(size),
        heap_ranks=np.zeros(size, np.int64),
        orders=np.zeros(problem.num_ops, np.int64),
    )


def _most_idle(problem: Problem, worst: float) -> Floats:
    """Say how long each rank may wait between its ops if the objective is to be so large."""
    limits = worst * (1 + TOLERANCE) - problem.loads
    if problem.objective == "makespan":
        limits -= [share.start for share in problem.shares]
    return limits


@hot
def place_all(problem: Instance, preferences: Preferences, state: State) -> int:
    """Place ops until none is left or a rank is too idle; return how many were placed."""
    size = 0
    for rank in range(len(state.free)):
        state.wake[rank] = 0.0
        size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
    num_placed = 0
    while size > 0:
        time, rank = state.heap_times[0], state.heap_ranks[0]
        size = pop(state.heap_times, state.heap_ranks, size)
        if time != state.wake[rank]:
            continue
        state.wake[rank] = _NEVER
        now = max(time, state.free[rank])
        kind, stage, again = choose(problem, preferences, state, rank, now)
        if kind == _NONE:
            if again < state.wake[rank]:
                state.wake[rank] = again
                size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
            continue
        end = place(problem, state, rank, now, kind, stage)
        if state.idle[rank] > state.most_idle[rank]:
            return _TOO_IDLE
        num_placed += 1
        state.wake[rank] = end
        size = push(state.heap_times, state.heap_ranks, state.wake, size, rank)
        reader = -1
        if kind == _F and stage + 1 < len(problem.forward):
            reader, arrival = problem.holders[stage + 1], end + problem.travel[stage]
        elif kind == _B and stage > 0:
            reader, arrival = problem.holders[stage - 1], end + problem.travel[stage - 1]
        if reader >= 0 and reader != rank:
            arrival = max(arrival, state.free[reader])
            if arrival < state.wake[reader]:
                state.wake[reader] = arrival
                size = push(state.heap_times, state.heap_ranks, state.wake, size, reader)
    return num_placed


@hot
def choose(
    problem: Instance, preferences: Preferences, state: State, rank: int, now: float
) -> tuple[int, int, float]:
    """Pick the op that a rank starts now, or none and the time at which to look again."""
    kind, stage, key = _NONE, -1, _NEVER
    later, better_key, better_time = _NEVER, _NEVER, _NEVER
    weight_stage, weight_key, blocked_key = -1, _NEVER, _NEVER
    num_microbatches = problem.num_microbatches
    last = len(problem.forward) - 1
    for index in range(problem.offsets[rank], problem.offsets[rank + 1]):
        s = problem.stages[index]
        i = state.num_b[s]
        if i < state.num_f[s]:
            if s == last:
                arrival = state.end_f[s * num_microbatches + i]
            else:
                arrival = state.end_b[(s + 1) * num_microbatches + i] + problem.travel[s]
            this_key = preferences.keys[(_B * (last + 1) + s) * num_microbatches + i]
            if arrival <= now + TOLERANCE:
                if this_key < key:
                    kind, stage, key = _B, s, this_key
            elif arrival < _NEVER:
                later = min(later, arrival)
                if this_key < better_key:
                    better_key, better_time = this_key, arrival
        i = state.num_f[s]
        if i < num_microbatches:
            arrival = 0.0
            if s > 0:
                arrival = state.end_f[(s - 1) * num_microbatches + i] + problem.travel[s - 1]
            this_key = preferences.keys[s * num_microbatches + i]
            is_lesser = arrival <= now + TOLERANCE and this_key >= key
            if (
                arrival < _NEVER
                and not is_lesser
                and may_start(problem, preferences, state, rank, index)
            ):
                if state.memory[rank] + problem.held[s] > problem.limits[rank] * (1 + TOLERANCE):
                    if arrival <= now + preferences.makes_room * problem.forward[s] + TOLERANCE:
                        blocked_key = min(blocked_key, this_key)
                elif arrival <= now + TOLERANCE:
                    if this_key < key:
                        kind, stage, key = _F, s, this_key
                else:
                    later = min(later, arrival)
                    if this_key < better_key:
                        better_key, better_time = this_key, arrival
        i = state.num_w[s]
        if i < state.num_b[s]:
            this_key = preferences.keys[(_W * (last + 1) + s) * num_microbatches + i]
            if this_key < weight_key:
                weight_stage, weight_key = s, this_key
    if weight_stage >= 0:
        # An F that only waits for memory lends its key to the W that makes room for it.
        weight_key = min(weight_key, blocked_key - TOLERANCE)
        if weight_key < key:
            kind, stage, key = _W, weight_stage, weight_key
    if kind == _NONE:
        return _NONE, -1, later
    if better_key < key:
        duration = problem.forward[stage]
        if kind == _B:
            duration = problem.backward[stage]
        elif kind == _W:
            duration = problem.weight[stage]
        wait = better_time - now
        is_patient = wait < preferences.patience * duration - TOLERANCE
        is_patient = is_patient and better_key < now + duration + preferences.leeway - TOLERANCE
        idle = state.idle[rank] + wait
        can_afford = state.positions[rank] > 0 and idle <= preferences.budgets[rank] + TOLERANCE
        # Clearly less: in a rhythm, ops often arrive just when another ends.
        if wait < duration - TOLERANCE and (is_patient or can_afford):
            return _NONE, -1, better_time
    return kind, stage, 0.0


@hot
def may_start(
    problem: Instance, preferences: Preferences, state: State, rank: int, index: int
) -> bool:
    """Say whether caps and the admission rule let a rank start the next F of one of its stages.

    The rule: for every deeper stage q of the rank with forwards to do, what the shallower stages
    are ahead of q, and one microbatch through q and all deeper stages, must fit in the limit.
    """
    stage = problem.stages[index]
    cap = preferences.caps[stage]
    if state.begun_backward[rank] == 0:
        cap = preferences.warm_caps[stage]
    if state.num_f[stage] - state.num_b[stage] >= cap:
        return False
    first, end = problem.offsets[rank], problem.offsets[rank + 1]
    room = problem.limits[rank] * (1 + TOLERANCE) - problem.held[stage]
    shallower, done, deeper = 0.0, 0.0, 0.0  # held by those stages for one microbatch, for all F
    for other in range(first, end):
        deeper += problem.held[problem.stages[other]]
    for other in range(first, end):
        q = problem.stages[other]
        waits = other > index and state.num_f[q] < problem.num_microbatches
        if waits and done - shallower * state.num_f[q] + deeper > room:
            return False
        shallower += problem.held[q]
        done += problem.held[q] * state.num_f[q]
        deeper -= problem.held[q]
    return True


@hot
def place(problem: Instance, state: State, rank: int, now: float, kind: int, stage: int) -> float:
    """Run an op on a rank from now on; return its end."""
    num_microbatches, num_stages = problem.num_microbatches, len(problem.forward)
    if kind == _F:
        i, end = state.num_f[stage], now + problem.forward[stage]
        state.num_f[stage] += 1
        state.memory[rank] += problem.held[stage]
        state.end_f[stage * num_microbatches + i] = end
    elif kind == _B:
        i, end = state.num_b[stage], now + problem.backward[stage]
        state.num_b[stage] += 1
        state.memory[rank] -= problem.held[stage] - problem.kept[stage]
        state.end_b[stage * num_microbatches + i] = end
        state.begun_backward[rank] = 1
    else:
        i, end = state.num_w[stage], now + problem.weight[stage]
        state.num_w[stage] += 1
        state.memory[rank] -= problem.kept[stage]
    position = state.positions[rank]
    if position > 0:
        state.idle[rank] += now - state.free[rank]
    first = 3 * num_microbatches * problem.offsets[rank]
    state.orders[first + position] = (kind * num_stages + stage) * num_microbatches + i
    state.positions[rank] = position + 1
    state.free[rank] = end
    return float(end)
