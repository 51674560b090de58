"""What is the shortest span or makespan of a small problem? A plain model for a solver."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from zerobubble.costs import Costs
from zerobubble.ir import Kind, Op, Placement, Schedule
from zerobubble.simulate import Timeline

KINDS = (Kind.F, Kind.B, Kind.W)


class Optimum(NamedTuple):
    """The least span or makespan, and a schedule that has it if its ops may start later."""

    value: int
    schedule: Schedule


class Model:
    """Start times of all ops, with the rules of time and memory; costs are whole numbers.

    Ops may start later than they could, but for the first of a rank: a span begins with it.
    """

    def __init__(
        self, costs: Costs, placement: Placement, num_microbatches: int, limits: Sequence[float]
    ) -> None:
        self.durations = costs.durations().astype(int).tolist()
        self.hops = [
            int(costs.transfer[s]) if placement.stage_to_rank[s : s + 2].count(r) == 1 else 0
            for s, r in enumerate(placement.stage_to_rank)
        ]
        self.activation = costs.activation.astype(int).tolist()
        self.kept = costs.activation_kept.astype(int).tolist()
        self.placement, self.microbatches = placement, range(num_microbatches)
        self.stages = range(placement.num_stages)
        alone = sum(map(sum, self.durations[:3])) + 2 * sum(self.hops)
        self.horizon = num_microbatches * alone
        self.model = cp_model.CpModel()
        self.start = {
            (kind, s, i): self._time()
            for kind in KINDS
            for s in self.stages
            for i in self.microbatches
        }
        self.held_for = {}
        self._follow_dependencies()
        for rank in range(placement.num_ranks):
            self._begin_at_once(placement.stages_of(rank)[0])
            self._run_one_at_a_time(placement.stages_of(rank))
            self._stay_within(placement.stages_of(rank), int(limits[rank]))

    def _time(self):
        return self.model.new_int_var(0, self.horizon, "")

    def end(self, kind, s, i):
        """Give the end of an op."""
        return self.start[kind, s, i] + self.durations[kind][s]

    def _begin_at_once(self, s):
        """Start the first F of a rank, which nothing precedes there, as its input arrives."""
        arrival = self.end(Kind.F, s - 1, 0) + self.hops[s - 1] if s else 0
        self.model.add(self.start[Kind.F, s, 0] == arrival)

    def _follow_dependencies(self):
        last = self.stages[-1]
        for s in self.stages:
            for i in self.microbatches:
                if s > 0:
                    self._after((Kind.F, s, i), (Kind.F, s - 1, i), self.hops[s - 1])
                if s < last:
                    self._after((Kind.B, s, i), (Kind.B, s + 1, i), self.hops[s])
                self._after((Kind.B, s, i), (Kind.F, s, i))
                self._after((Kind.W, s, i), (Kind.B, s, i))
                for kind in KINDS if i else ():
                    self._after((kind, s, i), (kind, s, i - 1))

    def _after(self, later, earlier, travel=0):
        self.model.add(self.start[later] >= self.end(*earlier) + travel)

    def _run_one_at_a_time(self, stages):
        intervals = [
            self.model.new_fixed_size_interval_var(
                self.start[kind, s, i], self.durations[kind][s], ""
            )
            for kind in KINDS
            for s in stages
            for i in self.microbatches
        ]
        self.model.add_no_overlap(intervals)

    def _stay_within(self, stages, limit):
        """Hold what B frees from F to the end of B, and what W needs to the end of W."""
        intervals, sizes = [], []
        for s in stages:
            for i in self.microbatches:
                for kind, size in (
                    (Kind.B, self.activation[s] - self.kept[s]),
                    (Kind.W, self.kept[s]),
                ):
                    self.held_for[kind, s, i] = length = self._time()
                    begin, end = self.start[Kind.F, s, i], self.end(kind, s, i)
                    intervals.append(self.model.new_interval_var(begin, length, end, ""))
                    sizes.append(size)
        self.model.add_cumulative(intervals, sizes, limit)

    def shortest(
        self,
        objective: str,
        deterministic_time: float,
        bound: float = 0.0,
        known: Timeline | None = None,
    ) -> Optimum | None:
        """Find the least span or makespan, or None if the solver cannot prove it in this time.

        Args:
            objective: ``span`` or ``makespan``.
            deterministic_time: what the solver may spend, in its own unit.
            bound: a time that cannot be beaten.
            known: a schedule without fused backwards to start from.
        """
        length, last = self._time(), self.microbatches[-1]
        for rank in range(self.placement.num_ranks):
            stages = self.placement.stages_of(rank)
            first = self.start[Kind.F, stages[0], 0] if objective == "span" else 0
            for s in stages:
                self.model.add(length >= self.end(Kind.W, s, last) - first)
        self.model.add(length >= math.ceil(bound * (1 - 1e-9)))
        self.model.minimize(length)
        if known is not None:
            self._start_from(known, length, getattr(known, objective))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = deterministic_time
        if solver.solve(self.model) != cp_model.OPTIMAL:
            return None
        return Optimum(round(solver.objective_value), self._schedule(solver))

    def _schedule(self, solver):
        """Read the orders of all ranks from their starts."""
        orders = [[] for _ in range(self.placement.num_ranks)]
        for kind, s, i in sorted(self.start, key=lambda op: solver.value(self.start[op])):
            orders[self.placement.stage_to_rank[s]].append(Op(kind, s, i))
        return Schedule.from_ops("optimum", self.placement, len(self.microbatches), orders)

    def _start_from(self, known, length, value):
        """Give every variable its value in a schedule."""
        ranks = range(self.placement.num_ranks)
        ops = {tuple(timed.op): timed for rank in ranks for timed in known.timed_ops(rank)}
        for op, variable in self.start.items():
            self.model.add_hint(variable, round(ops[op].start))
        for (kind, s, i), variable in self.held_for.items():
            held = ops[kind, s, i].end - ops[Kind.F, s, i].start
            self.model.add_hint(variable, round(held))
        self.model.add_hint(length, round(value))
