"""When does every op of a schedule run? Schedule and costs in, Timeline out."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zerobubble.copy_engines import run_beside_copies
from zerobubble.costs import Costs, Floats
from zerobubble.graph import producers, run_order
from zerobubble.ir import Codes, Kind, Op, Schedule
from zerobubble.jit import hot
from zerobubble.waits import find_waits


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
        start: for each rank, the start of every op, in the rank's order; O and L are copies, which
            run beside the others.
        end: likewise the end.
    """

    schedule: Schedule
    costs: Costs
    start: tuple[Floats, ...]
    end: tuple[Floats, ...]

    @cached_property
    def computed(self) -> tuple[Codes | slice, ...]:
        """For each rank, where in its order the ops are that it computes: all but O and L."""
        if not self.schedule.has_copies:
            return (slice(None),) * self.schedule.num_ranks
        kinds = (self.schedule.fields(order)[0] for order in self.schedule.orders)
        return tuple(np.flatnonzero((kind != Kind.O) & (kind != Kind.L)) for kind in kinds)

    def compute_times(self, rank: int) -> tuple[Floats, Floats]:
        """Give start and end of the ops that a rank computes, one after the other."""
        computed = self.computed[rank]
        return self.start[rank][computed], self.end[rank][computed]

    def _all_compute_times(self) -> list[tuple[Floats, Floats]]:
        return [self.compute_times(rank) for rank in range(self.schedule.num_ranks)]

    @cached_property
    def work_per_rank(self) -> list[float]:
        """Sum of the durations of the ops that each rank computes."""
        return [float((end - start).sum()) for start, end in self._all_compute_times()]

    @cached_property
    def span_per_rank(self) -> list[float]:
        """Time from the start of a rank's first op to the end of its last."""
        pairs = self._all_compute_times()
        return [float(end[-1] - start[0]) if len(end) else 0.0 for start, end in pairs]

    @property
    def span(self) -> float:
        """Largest ``span_per_rank``: the time from step to step when no barrier ends a step."""
        return max(self.span_per_rank)

    @cached_property
    def makespan(self) -> float:
        """Time from the first start to the last end on any rank: a step that ends in a barrier."""
        pairs = [pair for pair in self._all_compute_times() if len(pair[0])]
        return max(float(end[-1]) for _, end in pairs) - min(float(start[0]) for start, _ in pairs)

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

        F and R allocate as they start; B, W and BW free as they end. O frees as the compute passes
        it, when the copy and all ops before have ended; L allocates when all ops before have ended.
        """
        kinds, _, _ = self.schedule.fields(self.schedule.orders[rank])
        start, end = self.start[rank], self.end[rank]
        times = np.where((kinds == Kind.F) | (kinds == Kind.R), start, end)
        if self.schedule.has_copies:
            frees = np.where(kinds == Kind.L, -np.inf, end)
            passed = np.maximum.accumulate(frees)
            is_copy = (kinds == Kind.O) | (kinds == Kind.L)
            times = np.where(is_copy, np.maximum(passed, start[:1]), times)
        return times, np.cumsum(self.costs.memory_changes_of(self.schedule, rank))

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

        From the op that ends last, each step back goes to what was waited for longest: the op
        before on the same rank, the one whose output was needed, or a copy.
        """
        start, end = np.concatenate(self.start), np.concatenate(self.end)
        codes, offsets = self.schedule.flat()
        found = find_waits(self.schedule, start, end, self.costs.ranks_per_engine)
        travel = travels_of_ops(self.schedule, self.costs)[codes // self.schedule.num_microbatches]
        times = end[found.turn], end[found.needs] + travel, end[found.load]
        rank = max((r for r, end in enumerate(self.end) if len(end)), key=lambda r: self.end[r][-1])
        index, path = int(offsets[rank + 1]) - 1, []
        while index >= 0:
            rank = int(np.searchsorted(offsets, index, side="right")) - 1
            op = self.schedule.op(codes[index])
            path.append(TimedOp(rank, op, float(start[index]), float(end[index])))
            index = found.latest(index, times)
        return path[::-1]


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Run a schedule on paper: every op as early as its rank's order and its input allow.

    A transfer between ranks delays the op that needs it and occupies no rank. The copies of a rank
    run beside its compute, those to the host one after the other in the order of their forwards,
    those back in the order of its L; where ranks share engines, in the order in which they would
    start if none did. O starts as soon as its F has ended; the compute goes on
    behind O when that has ended. L starts when the compute reaches it, and its B (or BW) waits for
    it.

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
    tables = (needs, schedule.num_microbatches, *rows)
    if schedule.has_copies:
        run_beside_copies(schedule, costs.ranks_per_engine, order, tables, start, end)
    else:
        free = np.zeros(schedule.num_ranks)
        run_in_order(order, *tables, free, start, end, work=len(order), adds_up=True)
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


def has_free_copies(timeline: Timeline) -> bool:
    """Tell whether anything is offloaded, and the costs say of no copy that it takes time."""
    costs = timeline.costs
    return timeline.schedule.has_copies and not (costs.offload.any() or costs.load.any())


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
