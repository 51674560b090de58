"""Which pattern of ops, repeated in every period, needs least memory? Modulo scheduling.

A pattern gives F, B and W of every stage a start for one microbatch; the next microbatch follows a
period later everywhere. As preferences it leads to orders with its rhythm. CP-SAT of OR-Tools looks
for patterns (the extra ``search``); without it there are none. That takes minutes and seldom finds
what climbing over templates does not, so only a thorough search does it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes
from zerobubble.search.orders.instance import instance_of
from zerobubble.search.problem import Problem
from zerobubble.search.rules.shape import Shape

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

# Periods that are tried, in loads of the busiest rank, until a pattern fits in the memory.
_PERIODS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
# Patterns of more stages are not found in any time worth spending.
MOST_STAGES = 24
# Times are whole parts of a period in the solver, and memory of what a stage holds at most.
_TICKS, _MEMORY_TICKS = 240, 64
# The same strategies by turns and the same numbers, for the same result on any machine.
_WORKERS, _SEED = 4, 1


@dataclass(frozen=True, eq=False)
class Pattern:
    """Starts within a rhythm, by kind (F, B, W) and stage.

    Attributes:
        period: time from one microbatch to the next.
        starts: of the first microbatch, F of stage 0 being about 0.
    """

    period: float
    starts: Floats

    def in_flight(self, problem: Problem) -> Codes:
        """Say for each stage how many microbatches are between F and B at most."""
        time = self.starts[1] + problem.costs.backward_input - self.starts[0]
        whole: Codes = np.maximum(1, np.ceil(time / self.period - TOLERANCE)).astype(np.int64)
        return whole

    def peaks(self, problem: Problem) -> Floats:
        """Give the memory that each rank holds at most while the pattern repeats."""
        instance, (f, b, w) = instance_of(problem), self.starts
        end_b, end_w = b + instance.backward, w + instance.weight
        freed = ((end_b, instance.held - instance.kept), (end_w, instance.kept))
        peaks = np.zeros(len(instance.limits))
        for stage, now in enumerate(f):
            rank = instance.holders[stage]
            on_rank = instance.holders == rank
            begun = np.floor((now - f) / self.period + TOLERANCE) + 1
            held = instance.held * begun
            for end, size in freed:
                held = held - size * (np.floor((now - end) / self.period + TOLERANCE) + 1)
            peaks[rank] = max(peaks[rank], held[on_rank].sum())
        return peaks

    def shapes(self, problem: Problem) -> Iterator[Shape]:
        """Yield preferences with this rhythm, some with more room, some with later W."""
        num_ranks, in_flight = problem.placement.num_ranks, self.in_flight(problem)
        for more, delay, patience in product((0, 1, 2), (0.0, 0.5), (0.0, 0.5)):
            keys = self.starts + np.array([[0.0], [0.0], [delay * self.period]])
            caps = in_flight + more
            yield Shape(keys, caps, caps, patience, 1.0, np.full(num_ranks, -1.0))


def find_pattern(problem: Problem, work: float) -> Pattern | None:
    """Find a pattern that fits in the memory, of the shortest period for which one is found.

    Args:
        problem: what is scheduled; the number of microbatches does not matter.
        work: what each call of the solver may spend, about in seconds; the same for the same input.

    Returns:
        None without OR-Tools, for more than ``MOST_STAGES`` stages, or if none fits.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None
    if problem.placement.num_stages > MOST_STAGES:
        return None
    for stretch in _PERIODS:
        model = _Model(cp_model, problem, stretch * problem.period)
        found = model.solve(model.excess, work)
        if found is None or found.objective_value > 0:
            continue
        model.fit(found)
        return model.pattern(model.solve(model.latency, work) or found)
    return None


class _Model:
    """A pattern as the solver sees it: whole times and sizes, and a start in turns and a phase."""

    def __init__(self, solver: Any, problem: Problem, period: float) -> None:
        self.solver, self.instance = solver, instance_of(problem)
        self.tick = period / _TICKS
        instance, num_ranks = self.instance, problem.placement.num_ranks
        times = np.stack([instance.forward, instance.backward, instance.weight]) / self.tick
        self.durations = np.round(times).astype(int).tolist()
        self.stages = range(problem.placement.num_stages)
        self.stages_of = [problem.placement.stages_of(rank) for rank in range(num_ranks)]
        loads = [sum(d[s] for d in self.durations for s in of) for of in self.stages_of]
        self.period = max(_TICKS, *loads)
        self.travel = np.ceil(instance.travel / self.tick).astype(int).tolist()
        alone = sum(map(sum, self.durations)) + 2 * sum(self.travel)
        self.most_turns = 2 + 3 * alone // self.period
        self.model: cp_model.CpModel = solver.CpModel()
        self.phases = [[self._phase() for _ in self.stages] for _ in range(3)]
        self.turns = [[self._turn() for _ in self.stages] for _ in range(3)]
        self.model.add(self._start(0, 0) == 0)
        self._follow_dependencies()
        for stages in self.stages_of:
            self._run_one_at_a_time(stages)
        self.excess = self.model.new_int_var(0, 10**9, "")
        for rank, stages in enumerate(self.stages_of):
            self._count_memory(rank, stages)
        self.latency = self._start(1, 0)

    def _phase(self) -> Any:
        return self.model.new_int_var(0, self.period - 1, "")

    def _turn(self) -> Any:
        return self.model.new_int_var(0, self.most_turns, "")

    def _start(self, kind: int, stage: int) -> Any:
        return self.turns[kind][stage] * self.period + self.phases[kind][stage]

    def _end(self, kind: int, stage: int) -> Any:
        return self._start(kind, stage) + self.durations[kind][stage]

    def _follow_dependencies(self) -> None:
        for stage in self.stages:
            if stage > 0:
                arrival = self._end(0, stage - 1) + self.travel[stage - 1]
                self.model.add(self._start(0, stage) >= arrival)
                arrival = self._end(1, stage) + self.travel[stage - 1]
                self.model.add(self._start(1, stage - 1) >= arrival)
            self.model.add(self._start(2, stage) >= self._end(1, stage))
        self.model.add(self._start(1, self.stages[-1]) >= self._end(0, self.stages[-1]))

    def _run_one_at_a_time(self, stages: tuple[int, ...]) -> None:
        """Forbid that ops of a rank overlap, also those of one period with those of the next."""
        self.model.add_no_overlap(
            self.model.new_fixed_size_interval_var(phase + shift, duration, "")
            for of_kind, durations in zip(self.phases, self.durations, strict=True)
            for phase, duration in ((of_kind[s], durations[s]) for s in stages)
            for shift in (0, self.period)
            if duration > 0
        )

    def _count_memory(self, rank: int, stages: tuple[int, ...]) -> None:
        """Count what a rank holds where it is most: when one of its F has just started."""
        instance = self.instance
        if not np.isfinite(instance.limits[rank]):
            return
        unit = float(instance.held.max()) / _MEMORY_TICKS or 1.0
        ends = [(self._turns_of_end(1, s), self._turns_of_end(2, s)) for s in stages]
        for now in stages:
            held = []
            for s, (end_b, end_w) in zip(stages, ends, strict=True):
                kept = round(float(instance.kept[s]) / unit)
                freed_by_b = round(float(instance.held[s]) / unit) - kept
                for size, (turns, phase) in ((freed_by_b, end_b), (kept, end_w)):
                    is_later = self._is_later(phase, self.phases[0][now])
                    begun_later = 0
                    if s != now:
                        begun_later = self._is_later(self.phases[0][s], self.phases[0][now])
                    held.append(size * (turns + is_later - self.turns[0][s] - begun_later))
            limit = int(instance.limits[rank] / unit + TOLERANCE)
            self.model.add(sum(held) <= limit + self.excess)

    def _turns_of_end(self, kind: int, stage: int) -> tuple[Any, Any]:
        turns, phase = self._turn(), self._phase()
        self.model.add(turns * self.period + phase == self._end(kind, stage))
        return turns, phase

    def _is_later(self, one: Any, other: Any) -> Any:
        later = self.model.new_bool_var("")
        self.model.add(one > other).only_enforce_if(later)
        self.model.add(one <= other).only_enforce_if(~later)
        return later

    def solve(self, objective: Any, work: float) -> Any:
        """Minimise; give the solver with what it has found, or None."""
        self.model.minimize(objective)
        solver = self.solver.CpSolver()
        solver.parameters.max_deterministic_time = work
        solver.parameters.num_workers = _WORKERS
        solver.parameters.interleave_search = True  # the same result on any machine
        solver.parameters.random_seed = _SEED
        solver.parameters.catch_sigint_signal = False
        with ThreadPoolExecutor(1) as pool:  # so that the user can interrupt
            solving = pool.submit(solver.solve, self.model)
            try:
                status = solving.result()
            except BaseException:
                solver.stop_search()
                raise
        return solver if status in (self.solver.OPTIMAL, self.solver.FEASIBLE) else None

    def fit(self, found: Any) -> None:
        """Demand that the memory suffices, as it does in what has been found."""
        self.model.add(self.excess == 0)
        for var in chain(*self.phases, *self.turns):
            self.model.add_hint(var, found.value(var))

    def pattern(self, found: Any) -> Pattern:
        """Read the pattern out of the solver."""
        starts = [[found.value(self._start(k, s)) for s in self.stages] for k in range(3)]
        return Pattern(self.period * self.tick, np.array(starts, np.float64) * self.tick)
