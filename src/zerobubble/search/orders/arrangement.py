"""In which order do the ranks run their ops, and how long do a span and a makespan take then?

What a search compares thousands of times: bare arrays instead of a ``Schedule`` and a ``Timeline``.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot
from zerobubble.search.orders.instance import Instance, instance_of
from zerobubble.search.problem import Problem
from zerobubble.simulate import Timeline

_NEVER = np.inf
# A search does the same thing so often that compiling pays off early.
USUAL_NUMBER_OF_RUNS = 20_000


@dataclass(frozen=True, eq=False)
class Arrangement:
    """The order of all ops of a problem, backwards split into B and W, and its times.

    Attributes:
        problem: what is arranged.
        codes: op codes of rank 0 in its order, then those of rank 1, ...
        start: start of every op by code, as early as the orders allow.
        span, makespan: as of a ``Timeline``.
        name: of the schedule.
    """

    problem: Problem
    codes: Codes
    start: Floats
    span: float
    makespan: float
    name: str = "search"

    @property
    def value(self) -> float:
        """What the problem wants to be short."""
        return self.span if self.problem.objective == "span" else self.makespan

    @cached_property
    def times_of_ranks(self) -> Floats:
        """Give the time of each rank whose largest is the objective."""
        first = 3 * self.problem.num_microbatches * instance_of(self.problem).offsets
        ends = self.end[self.codes[first[1:] - 1]]
        if self.problem.objective == "makespan":
            return ends
        spans: Floats = ends - self.start[self.codes[first[:-1]]]
        return spans

    @cached_property
    def end(self) -> Floats:
        """End of every op by code."""
        durations = self.problem.costs.durations()[:3].reshape(-1)
        return self.start + np.repeat(durations, self.problem.num_microbatches)

    def timeline(self) -> Timeline:
        """Give the schedule with the times of its ops."""
        problem = self.problem
        ends = 3 * problem.num_microbatches * instance_of(problem).offsets
        orders = tuple(self.codes[a:b] for a, b in pairwise(ends.tolist()))
        schedule = Schedule(self.name, problem.placement, problem.num_microbatches, orders)
        start = tuple(self.start[codes] for codes in orders)
        return Timeline(schedule, problem.costs, start, tuple(self.end[codes] for codes in orders))


def split_codes(schedule: Schedule) -> Codes:
    """Join the orders of all ranks, with W right after B in the place of each fused BW."""
    codes, _ = schedule.flat()
    pair = schedule.num_stages * schedule.num_microbatches
    is_fused = codes >= Kind.BW * pair
    split = np.repeat(codes, 1 + is_fused)
    at = np.flatnonzero(is_fused) + np.arange(int(is_fused.sum()))
    split[at] -= (Kind.BW - Kind.B) * pair
    split[at + 1] -= (Kind.BW - Kind.W) * pair
    return split


def arrange_within_limits(problem: Problem, codes: Codes, name: str) -> Arrangement | None:
    """Time an order of all ops of every rank; None if it breaks a rule or a memory limit."""
    counts = np.zeros(3 * problem.placement.num_stages, np.int64)
    if not all_obey(instance_of(problem), codes, counts, work=problem.num_ops):
        return None
    return arrange(problem, codes, name)


class Run(NamedTuple):
    """How far the ranks have come while their orders are timed; per rank unless said otherwise.

    Attributes:
        start: start of every op, by code; infinite before it has run.
        end: likewise the end.
        free: end of the rank's last op.
        positions: how many of its ops have run.
        line: ranks that may be able to go on: a stack.
        in_line: whether the rank is in it.
    """

    start: Floats
    end: Floats
    free: Floats
    positions: Codes
    line: Codes
    in_line: Codes


def fresh_run(problem: Problem) -> Run:
    """Give the arrays for ``run_all``, which may be used again and again."""
    num_ranks, num_ops = problem.placement.num_ranks, problem.num_ops
    counts = (np.zeros(num_ranks, np.int64) for _ in range(3))
    return Run(np.empty(num_ops), np.empty(num_ops), np.empty(num_ranks), *counts)


def arrange(problem: Problem, codes: Codes, name: str = "search") -> Arrangement | None:
    """Time an order of all ops of every rank; None if the ranks would wait for each other.

    Memory is not looked at.
    """
    run = fresh_run(problem)
    work = USUAL_NUMBER_OF_RUNS * problem.num_ops
    num_done, span, makespan = run_all(instance_of(problem), codes, run, work=work)
    if num_done < problem.num_ops:
        return None
    return Arrangement(problem, codes, run.start, span, makespan, name)


@hot
def run_all(problem: Instance, codes: Codes, run: Run) -> tuple[int, float, float]:
    """Start every op as early as possible; say how many ran, and give span and makespan."""
    num_ranks, num_microbatches = len(run.free), problem.num_microbatches
    for code in range(len(run.end)):
        run.end[code] = _NEVER
    for rank in range(num_ranks):
        run.free[rank], run.positions[rank] = 0.0, 0
        run.line[rank], run.in_line[rank] = num_ranks - 1 - rank, 1
    size, num_done = num_ranks, 0
    while size > 0:
        size -= 1
        rank = run.line[size]
        run.in_line[rank] = 0
        first = 3 * num_microbatches * problem.offsets[rank]
        length = 3 * num_microbatches * problem.offsets[rank + 1] - first
        while run.positions[rank] < length:
            reader = run_next(problem, codes[first + run.positions[rank]], rank, run)
            if reader == -2:
                break
            num_done += 1
            if reader >= 0 and run.in_line[reader] == 0:
                run.in_line[reader] = 1
                run.line[size] = reader
                size += 1
    span, makespan = lengths(problem, codes, run)
    return num_done, span, makespan


@hot
def run_next(problem: Instance, code: int, rank: int, run: Run) -> int:
    """Run one op; return the other rank that reads its output, -1 for none, -2 if it must wait."""
    num_microbatches, num_stages = problem.num_microbatches, len(problem.forward)
    row = code // num_microbatches
    begin, reader = run.free[rank], -1
    if row < num_stages:
        if row > 0:
            arrival = run.end[code - num_microbatches] + problem.travel[row - 1]
            begin = max(begin, arrival)
        duration = problem.forward[row]
        if row + 1 < num_stages:
            reader = problem.holders[row + 1]
    elif row < 2 * num_stages:
        stage = row - num_stages
        if stage + 1 < num_stages:
            arrival = run.end[code + num_microbatches] + problem.travel[stage]
        else:
            arrival = run.end[code - num_stages * num_microbatches]
        begin = max(begin, arrival)
        duration = problem.backward[stage]
        if stage > 0:
            reader = problem.holders[stage - 1]
    else:
        begin = max(begin, run.end[code - num_stages * num_microbatches])
        duration = problem.weight[row - 2 * num_stages]
    if begin == _NEVER:
        return -2
    run.start[code] = begin
    run.end[code] = begin + duration
    run.free[rank] = begin + duration
    run.positions[rank] += 1
    if reader == rank:
        return -1
    return reader


@hot
def lengths(problem: Instance, codes: Codes, run: Run) -> tuple[float, float]:
    """Give the span and the makespan of a run."""
    span, makespan = 0.0, 0.0
    for rank in range(len(run.free)):
        first = codes[3 * problem.num_microbatches * problem.offsets[rank]]
        span = max(span, run.free[rank] - run.start[first])
        makespan = max(makespan, run.free[rank])
    return span, makespan


@hot
def all_obey(problem: Instance, codes: Codes, counts: Codes) -> bool:
    """Say whether the orders of all ranks obey the rules; ``counts`` is by kind and stage."""
    for rank in range(len(problem.limits)):
        first = 3 * problem.num_microbatches * problem.offsets[rank]
        length = 3 * problem.num_microbatches * problem.offsets[rank + 1] - first
        if not obeys(problem, codes, first, length, counts):
            return False
    return True


@hot
def obeys(problem: Instance, codes: Codes, first: int, length: int, counts: Codes) -> bool:
    """Say whether a rank's order keeps microbatches in order, F before B before W, and memory."""
    num_microbatches, num_stages = problem.num_microbatches, len(problem.forward)
    for row in range(3 * num_stages):
        counts[row] = 0
    memory, limit = 0.0, 0.0
    for index in range(first, first + length):
        row = codes[index] // num_microbatches
        i = codes[index] - row * num_microbatches
        if counts[row] != i or (row >= num_stages and counts[row - num_stages] <= i):
            return False
        counts[row] += 1
        if row < num_stages:
            limit = problem.limits[problem.holders[row]] * (1 + TOLERANCE)
            memory += problem.held[row]
            if memory > limit:
                return False
        elif row < 2 * num_stages:
            memory -= problem.held[row - num_stages] - problem.kept[row - num_stages]
        else:
            memory -= problem.kept[row - 2 * num_stages]
    return True
