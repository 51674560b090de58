"""What is the shortest span or makespan of a small problem? A plain model for a solver."""

from ortools.sat.python import cp_model

from zerobubble.costs import Costs
from zerobubble.ir import Kind, Placement

KINDS = (Kind.F, Kind.B, Kind.W)


class Model:
    """Start times of all ops, with the rules of time and memory; costs are whole numbers."""

    def __init__(self, costs: Costs, placement: Placement, num_microbatches: int, limits):
        self.durations = costs.durations().astype(int).tolist()
        self.hops = [
            int(costs.transfer[s]) if placement.stage_to_rank[s : s + 2].count(r) == 1 else 0
            for s, r in enumerate(placement.stage_to_rank)
        ]
        self.activation = costs.activation.astype(int).tolist()
        self.kept = costs.activation_kept.astype(int).tolist()
        self.placement, self.microbatches = placement, range(num_microbatches)
        self.stages = range(placement.num_stages)
        self.horizon = num_microbatches * sum(map(sum, self.durations[:3])) + 2 * sum(self.hops)
        self.model = cp_model.CpModel()
        self.start = {
            (kind, s, i): self._time()
            for kind in KINDS
            for s in self.stages
            for i in self.microbatches
        }
        self.model.add(self.start[Kind.F, 0, 0] == 0)
        self._follow_dependencies()
        for rank in range(placement.num_ranks):
            self._run_one_at_a_time(placement.stages_of(rank))
            self._stay_within(placement.stages_of(rank), int(limits[rank]))

    def _time(self):
        return self.model.new_int_var(0, self.horizon, "")

    def end(self, kind, s, i):
        return self.start[kind, s, i] + self.durations[kind][s]

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
                    length, end = self._time(), self.end(kind, s, i)
                    intervals.append(
                        self.model.new_interval_var(self.start[Kind.F, s, i], length, end, "")
                    )
                    sizes.append(size)
        self.model.add_cumulative(intervals, sizes, limit)

    def shortest(self, objective: str, deterministic_time: float) -> int | None:
        """Give the least span or makespan, or None if the solver cannot prove it in this time."""
        length, last = self._time(), self.microbatches[-1]
        for rank in range(self.placement.num_ranks):
            stages = self.placement.stages_of(rank)
            first = self.start[Kind.F, stages[0], 0] if objective == "span" else 0
            for s in stages:
                self.model.add(length >= self.end(Kind.W, s, last) - first)
        self.model.minimize(length)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = deterministic_time
        proved = solver.solve(self.model) == cp_model.OPTIMAL
        return round(solver.objective_value) if proved else None
