"""What has been planned so far on the ranks of a V, and when does the next op start?"""

import math
from collections.abc import Sequence

from zerobubble.costs import Costs
from zerobubble.ir import Kind, Op

# Times and sizes are taken as equal if they differ by less than this share of the largest.
_TOLERANCE = 1e-9


class VPlan:
    """End times of all ops planned so far, clock, idle time and memory of all ranks.

    Arguments as for ``zerobubble.schedules.v_rounds.v_rounds``.
    """

    def __init__(
        self, costs: Costs, num_microbatches: int, limits: Sequence[float], budget: float | None
    ) -> None:
        self.num_microbatches = num_microbatches
        self.num_stages = costs.num_stages
        self.ranks = range(costs.num_stages // 2)
        self.durations: list[list[float]] = costs.durations().tolist()
        self.transfer: list[float] = costs.transfer.tolist()
        self.transfer[self.ranks[-1]] = 0.0
        self.size: list[float] = costs.activation.tolist()
        self.changes: list[list[float]] = costs.memory_changes().tolist()
        self.limits = [limit * (1 + _TOLERANCE) for limit in limits]
        self.tolerance = _TOLERANCE * max(map(max, self.durations))
        self.ends: list[list[list[float]]] = [[[] for _ in range(self.num_stages)] for _ in Kind]
        self.orders: list[list[Op]] = [[] for _ in self.ranks]
        self.clock = [0.0 for _ in self.ranks]
        self.memory = [0.0 for _ in self.ranks]
        # Idle time so far, less the time that the rank has to spare as it has less work.
        work = [num_microbatches * self._work(rank) for rank in self.ranks]
        self.idle = [mine - max(work) for mine in work]
        self.budget = budget or 0.0
        self.budget_grows = budget is None

    def _work(self, rank: int) -> float:
        return sum(
            self.durations[k][s] for k in (Kind.F, Kind.B, Kind.W) for s in self.stages(rank)
        )

    def stages(self, rank: int) -> tuple[int, int]:
        """Give the stages of a rank on the way down and on the way up."""
        return rank, self.num_stages - 1 - rank

    def rank_of(self, stage: int) -> int:
        """Give the rank that holds a stage."""
        return min(stage, self.num_stages - 1 - stage)

    def count(self, kind: Kind, stage: int) -> int:
        """Say how many ops of a kind a stage has planned."""
        return len(self.ends[kind][stage])

    def left(self, kind: Kind, stage: int) -> bool:
        """Say whether a stage has ops of a kind left to plan."""
        return self.count(kind, stage) < self.num_microbatches

    def arrival(self, kind: Kind, stage: int) -> float | None:
        """Say when the input of the next F or B of a stage is there; None if not planned yet."""
        if kind == Kind.F and stage == 0:
            return 0.0
        turns = kind == Kind.B and stage == self.num_stages - 1
        before = stage if turns else stage - 1 if kind == Kind.F else stage + 1
        ends = self.ends[Kind.F if turns else kind][before]
        index = self.count(kind, stage)
        if index >= len(ends):
            return None
        return ends[index] + (0.0 if turns else self.transfer[min(before, stage)])

    def run(self, kind: Kind, stage: int, arrival: float = 0.0) -> None:
        """Plan the next op of a stage."""
        rank = self.rank_of(stage)
        start = max(arrival, self.clock[rank])
        if self.orders[rank]:
            self.idle[rank] += start - self.clock[rank]
            if self.budget_grows:
                self.budget = max(self.budget, self.idle[rank])
        self.orders[rank].append(Op(kind, stage, self.count(kind, stage)))
        self.clock[rank] = start + self.durations[kind][stage]
        self.ends[kind][stage].append(self.clock[rank])
        self.memory[rank] += self.changes[kind][stage]

    def run_if_planned(self, stage: int) -> bool:
        """Plan the next F of a stage, or say that its input is not planned yet."""
        arrival = self.arrival(Kind.F, stage)
        if arrival is not None:
            self.run(Kind.F, stage, arrival)
        return arrival is not None

    def num_fitting(self, stage: int, held: float) -> int:
        """Say how many microbatches of a stage fit beside what its rank holds."""
        room, size = self.limits[self.rank_of(stage)] - held, self.size[stage]
        if size * self.num_microbatches <= room:
            return self.num_microbatches
        return math.floor(room / size)

    def next_weight(self, rank: int) -> int | None:
        """Give the stage whose W has waited for most microbatches, if any."""
        pending = [s for s in self.stages(rank) if self.count(Kind.W, s) < self.count(Kind.B, s)]
        return min(pending, key=lambda stage: (self.count(Kind.W, stage), -stage), default=None)

    def run_weight(self, rank: int) -> bool:
        """Plan one W, or say that none is pending."""
        stage = self.next_weight(rank)
        if stage is not None:
            self.run(Kind.W, stage)
        return stage is not None

    def fill(self, rank: int, arrival: float, push: bool) -> None:
        """Plan every W that ends before ``arrival``, and one more if the budget demands it."""
        while (stage := self.next_weight(rank)) is not None:
            wait = arrival - self.clock[rank]
            if wait <= self.tolerance:
                return
            fits = self.durations[Kind.W][stage] <= wait + self.tolerance
            if not fits and not (push and wait > self.budget - self.idle[rank]):
                return
            self.run(Kind.W, stage)

    def make_room(self, stage: int) -> bool:
        """Plan W until the F of a stage fits, or say that it must not run now.

        An F on the way down must leave room for those on the way up, or it could block them.
        """
        rank = self.rank_of(stage)
        down, up = self.stages(rank)
        if stage == down and self.left(Kind.F, up):
            between = self.count(Kind.F, down) + 1 - self.count(Kind.F, up)
            if between * self.size[down] + self.size[up] > self.limits[rank]:
                return False
        while self.memory[rank] + self.size[stage] > self.limits[rank]:
            if not self.run_weight(rank):
                return False
        return True
