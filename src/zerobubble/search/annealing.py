"""How is an order improved op by op? Simulated annealing on the orders of the ranks.

A move takes one op of a rank to another place nearby, often in front of or behind an idle gap. It
is kept if the order still obeys the rules and its time does not grow, or grows by little while
the temperature is high. All numbers drawn are passed in, so that the result is the same wherever
it runs.
"""

import math
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.jit import hot
from zerobubble.search.arrangement import (
    USUAL_NUMBER_OF_RUNS,
    Arrangement,
    Run,
    arrange,
    fresh_run,
    obeys,
    run_all,
)
from zerobubble.search.instance import Instance, instance_of
from zerobubble.search.problem import Problem

_CLOSE = 1e-9
_REACH = 6
_CHUNK = 20_000
# Share of the mean over ranks in what is made small, so that moves on other ranks count too.
_MEAN_SHARE = 0.05


class Walk(NamedTuple):
    """What a walk over orders changes.

    Attributes:
        codes: the order it stands at; rank 0, then rank 1, ...
        best: the best order so far.
        start: starts of ``codes``, by code.
        ends: end of each rank.
        counts: scratch, by kind and stage.
        values: of ``codes`` with the mean, of ``best`` with the mean and of ``best`` alone.
    """

    codes: Codes
    best: Codes
    start: Floats
    ends: Floats
    counts: Codes
    values: Floats


def annealed(
    arrangement: Arrangement, num_moves: int, seed: int, temperature: float, bound: float
) -> Arrangement:
    """Improve an order by a number of moves; stop when the bound is reached.

    Args:
        arrangement: where to start.
        num_moves: how many moves are tried.
        seed: of the draws.
        temperature: at the start, as a share of the shortest op; a hundredth of it at the end.
        bound: a time that cannot be beaten.
    """
    problem, generator = arrangement.problem, np.random.default_rng(seed)
    unit = temperature * shortest_op(problem)
    run, by_makespan = fresh_run(problem), int(problem.objective == "makespan")
    walk = _begin(arrangement)
    for begin in range(0, num_moves, _CHUNK):
        count = min(_CHUNK, num_moves - begin)
        heat = unit * 0.01 ** ((begin + np.arange(count)) / num_moves)
        draws = generator.random((count, 6)).reshape(-1)
        work = num_moves * problem.num_ops
        walk_on(instance_of(problem), walk, run, draws, heat, by_makespan, bound, work=work)
        if walk.values[2] <= bound:
            break
    best = arrange(problem, walk.best)
    assert best is not None, "only orders that could run have been kept"
    return best


def shortest_op(problem: Problem) -> float:
    """Give the time of the shortest op that takes any; 1 if none does."""
    durations = problem.costs.durations()[:3]
    return float(min(durations[durations > 0], default=1.0))


def _begin(arrangement: Arrangement) -> Walk:
    problem, run = arrangement.problem, fresh_run(arrangement.problem)
    codes = arrangement.codes.copy()
    instance = instance_of(problem)
    run_all(instance, codes, run, work=USUAL_NUMBER_OF_RUNS * problem.num_ops)
    by_makespan = int(problem.objective == "makespan")
    mean, longest = measure.python(instance, codes, run.start, run.free, by_makespan)
    counts = np.zeros(3 * problem.placement.num_stages, np.int64)
    values = np.array([mean, mean, longest])
    return Walk(codes, codes.copy(), run.start.copy(), run.free.copy(), counts, values)


@hot
def walk_on(
    problem: Instance,
    walk: Walk,
    run: Run,
    draws: Floats,
    heat: Floats,
    by_makespan: int,
    bound: float,
) -> None:
    """Try one move for every value of ``heat``; six draws decide about each."""
    for number in range(len(heat)):
        first, length, source, target = pick_move(problem, walk, draws, 6 * number, by_makespan)
        if source < 0 or target < 0 or source >= length or target >= length or source == target:
            continue
        move(walk.codes, first + source, first + target)
        accepted = False
        if obeys(problem, walk.codes, first, length, walk.counts):
            num_done, _, _ = run_all(problem, walk.codes, run)
            if num_done == len(walk.codes):
                mean, longest = measure(problem, walk.codes, run.start, run.free, by_makespan)
                worse = mean - walk.values[0]
                accepted = worse <= 0 or draws[6 * number + 5] < math.exp(-worse / heat[number])
        if not accepted:
            move(walk.codes, first + target, first + source)
            continue
        walk.values[0] = mean
        for code in range(len(walk.start)):
            walk.start[code] = run.start[code]
        for rank in range(len(walk.ends)):
            walk.ends[rank] = run.free[rank]
        close = longest < walk.values[2] + _CLOSE and mean < walk.values[1] - _CLOSE
        if longest < walk.values[2] - _CLOSE or close:
            walk.values[1], walk.values[2] = mean, min(longest, walk.values[2])
            for index in range(len(walk.best)):
                walk.best[index] = walk.codes[index]
            if walk.values[2] <= bound:
                return


@hot
def pick_move(
    problem: Instance, walk: Walk, draws: Floats, at: int, by_makespan: int
) -> tuple[int, int, int, int]:
    """Choose a rank and which of its ops goes where.

    Returns:
        Where the rank's ops begin, how many it has, and the old and the new place among them.
    """
    num_ranks = len(walk.ends)
    rank = int(draws[at] * num_ranks)
    if draws[at + 1] < 0.4:
        longest = -1.0
        for other in range(num_ranks):
            begin = 0.0
            if by_makespan == 0:
                begin = walk.start[
                    walk.codes[3 * problem.num_microbatches * problem.offsets[other]]
                ]
            if walk.ends[other] - begin > longest:
                rank, longest = other, walk.ends[other] - begin
    first = 3 * problem.num_microbatches * problem.offsets[rank]
    length = 3 * problem.num_microbatches * problem.offsets[rank + 1] - first
    place = int(draws[at + 2] * length)
    shift = int(draws[at + 3] * (2 * _REACH + 1)) - _REACH
    way = draws[at + 4]
    if way < 0.5:
        place = after_next_gap(problem, walk, first, length, place)
        if way < 0.25:
            return first, length, place + shift, place
    return first, length, place, place + shift


@hot
def after_next_gap(problem: Instance, walk: Walk, first: int, length: int, place: int) -> int:
    """Find the op behind the next idle gap of a rank, from a place on and round the end."""
    for step in range(length - 1):
        index = first + (place + step) % (length - 1)
        code = walk.codes[index]
        row = code // problem.num_microbatches
        num_stages = len(problem.forward)
        if row < num_stages:
            duration = problem.forward[row]
        elif row < 2 * num_stages:
            duration = problem.backward[row - num_stages]
        else:
            duration = problem.weight[row - 2 * num_stages]
        if walk.start[walk.codes[index + 1]] > walk.start[code] + duration + _CLOSE:
            return index + 1 - first
    return place


@hot
def move(codes: Codes, source: int, target: int) -> None:
    """Take the op at one place to another; those between make room."""
    code = codes[source]
    step = 1
    if target < source:
        step = -1
    index = source
    while index != target:
        codes[index] = codes[index + step]
        index += step
    codes[target] = code


@hot
def measure(
    problem: Instance, codes: Codes, start: Floats, ends: Floats, by_makespan: int
) -> tuple[float, float]:
    """Give the longest time of a rank, once with a small share of the mean and once alone."""
    longest, total = 0.0, 0.0
    for rank in range(len(ends)):
        begin = 0.0
        if by_makespan == 0:
            begin = start[codes[3 * problem.num_microbatches * problem.offsets[rank]]]
        longest = max(longest, ends[rank] - begin)
        total += ends[rank] - begin
    return longest + _MEAN_SHARE * total / len(ends), longest
