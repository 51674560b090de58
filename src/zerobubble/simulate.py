"""When does every op of a schedule run? Schedule and costs in, Timeline out."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.graph import places, producers, run_order
from zerobubble.ir import Codes, Kind, Op, Schedule
from zerobubble.jit import hot


class TimedOp(NamedTuple):
    """An op with its rank, its start and its end."""

    rank: int
    op: Op
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """The ops of a schedule with start and end times, simulated or measured.

    Attributes:
        schedule: what ran.
        costs: activation sizes and transfer times; the ops' times are in ``start`` and ``end``.
        start: for each rank, the start of every op, in the rank's order.
        end: likewise the end.
    """

    schedule: Schedule
    costs: Costs
    start: tuple[Floats, ...]
    end: tuple[Floats, ...]

    @cached_property
    def work_per_rank(self) -> list[float]:
        """Sum of the op durations of each rank."""
        pairs = zip(self.start, self.end, strict=True)
        return [float((end - start).sum()) for start, end in pairs]

    @cached_property
    def span_per_rank(self) -> list[float]:
        """Time from the start of a rank's first op to the end of its last."""
        pairs = zip(self.start, self.end, strict=True)
        return [float(end[-1] - start[0]) if len(end) else 0.0 for start, end in pairs]

    @property
    def span(self) -> float:
        """Largest ``span_per_rank``: the time from step to step when no barrier ends a step."""
        return max(self.span_per_rank)

    @cached_property
    def makespan(self) -> float:
        """Time from the first start to the last end on any rank: a step that ends in a barrier."""
        last = max(float(end[-1]) for end in self.end if len(end))
        return last - min(float(start[0]) for start in self.start if len(start))

    @property
    def bubble(self) -> float:
        """Share of the span in which even the busiest rank waits, from 0 to 1."""
        return _bubble(self.span, max(self.work_per_rank))

    @property
    def bubble_makespan(self) -> float:
        """Likewise for the makespan."""
        return _bubble(self.makespan, max(self.work_per_rank))

    @property
    def idle_per_rank(self) -> list[float]:
        """Time that each rank waits between its first start and its last end."""
        pairs = zip(self.span_per_rank, self.work_per_rank, strict=True)
        return [span - work for span, work in pairs]

    def memory_curve(self, rank: int) -> tuple[Floats, Floats]:
        """Give the times at which the activation memory of a rank changes, and its value after.

        F allocates as it starts; B, W and BW free as they end.
        """
        kinds, stages, _ = self.schedule.fields(self.schedule.orders[rank])
        times = np.where(kinds == Kind.F, self.start[rank], self.end[rank])
        return times, np.cumsum(self.costs.memory_changes()[kinds, stages])

    @cached_property
    def peak_memory_per_rank(self) -> list[float]:
        """Largest activation memory of each rank."""
        curves = (self.memory_curve(rank)[1] for rank in range(self.schedule.num_ranks))
        return [float(curve.max(initial=0.0)) for curve in curves]

    @property
    def peak_memory(self) -> float:
        """Largest activation memory of any rank."""
        return max(self.peak_memory_per_rank)

    def timed_ops(self, rank: int) -> list[TimedOp]:
        """List the ops of a rank with their times, in the rank's order."""
        columns = (self.schedule.ops(rank), self.start[rank].tolist(), self.end[rank].tolist())
        return [TimedOp(rank, op, start, end) for op, start, end in zip(*columns, strict=True)]

    def critical_path(self) -> list[TimedOp]:
        """List, in time order, the ops that decide when the last one ends.

        From the op that ends last, each step back goes to the op that was waited for longest: the
        one before on the same rank, or the one whose output was needed.
        """
        needs = producers(self.schedule)
        ranks, indices = places(self.schedule)
        rank = max((r for r, end in enumerate(self.end) if len(end)), key=lambda r: self.end[r][-1])
        index, path = len(self.end[rank]) - 1, []
        while True:
            code = int(self.schedule.orders[rank][index])
            start, end = float(self.start[rank][index]), float(self.end[rank][index])
            path.append(TimedOp(rank, self.schedule.op(code), start, end))
            before = [(rank, index - 1)] if index else []
            if (need := needs[code]) >= 0:
                before.append((int(ranks[need]), int(indices[need])))
            if not before:
                return path[::-1]
            rank, index = max(before, key=partial(self._arrival, rank))

    def _arrival(self, here: int, place: tuple[int, int]) -> float:
        """Say when the end of the op at (rank, index) is known here: later if it ran elsewhere."""
        rank, index = place
        op = self.schedule.op(self.schedule.orders[rank][index])
        boundary = op.stage if op.kind is Kind.F else op.stage - 1
        travel = self.costs.transfer[boundary] if rank != here else 0.0
        return float(self.end[rank][index] + travel)


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Run a schedule on paper: every op as early as its rank's order and its input allow.

    A transfer between ranks delays the op that needs it and occupies no rank.

    Raises:
        ScheduleError: the ops wait for each other in a circle, or for one that no rank runs.
        UsageError: the costs are for another number of stages.

    >>> from zerobubble import build
    >>> simulate(build("1f1b", num_ranks=4, num_microbatches=8), Costs.uniform(4)).span
    33.0
    """
    costs.require_stages(schedule.num_stages, schedule.name)
    order, needs = run_order(schedule), producers(schedule)
    start, end = np.zeros(schedule.num_codes), np.zeros(schedule.num_codes)
    rows = ranks_of_ops(schedule), costs.durations().reshape(-1), travels_of_ops(schedule, costs)
    free = np.zeros(schedule.num_ranks)
    run_in_order(order, needs, schedule.num_microbatches, *rows, free, start, end, work=len(order))
    return Timeline(
        schedule,
        costs,
        tuple(start[codes] for codes in schedule.orders),
        tuple(end[codes] for codes in schedule.orders),
    )


@hot
def run_in_order(
    order: Codes,
    needs: Codes,
    num_microbatches: int,
    ranks: Codes,
    durations: Floats,
    travels: Floats,
    free: Floats,
    start: Floats,
    end: Floats,
) -> None:
    """Give every op its start and end; ranks, durations and travels are by kind and stage.

    Rank after rank is free again at the end of its last op.
    """
    for code in order:
        row = code // num_microbatches
        begin = free[ranks[row]]
        if needs[code] >= 0:
            begin = max(begin, end[needs[code]] + travels[row])
        start[code] = begin
        end[code] = free[ranks[row]] = begin + durations[row]


def travels_of_ops(schedule: Schedule, costs: Costs) -> Floats:
    """Tabulate how long the input of an op travels, by kind and stage: nothing within a rank."""
    holders = np.asarray(schedule.placement.stage_to_rank)
    hops = np.where(holders[:-1] != holders[1:], costs.transfer[:-1], 0.0)
    table: Floats = np.zeros((len(Kind), schedule.num_stages))
    table[Kind.F, 1:] = hops
    table[Kind.B, :-1] = hops
    table[Kind.BW, :-1] = hops
    return table.reshape(-1)


def ranks_of_ops(schedule: Schedule) -> Codes:
    """Tabulate the rank of an op by kind and stage."""
    return np.tile(np.asarray(schedule.placement.stage_to_rank, dtype=np.int64), len(Kind))


def _bubble(time: float, work: float) -> float:
    return max(0.0, (time - work) / time) if time > 0 else 0.0  # sums round differently
