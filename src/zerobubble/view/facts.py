"""Where does the time of a timeline go? Waiting, slack, idle time and its causes, memory.

All arrays run over the ops of all ranks, rank after rank (``Schedule.flat``), so that 100 000 ops
take a fraction of a second. The page computes the same in ``page/model/facts.js``; the tests hold
both to each other.

An op can run when its rank is free (the op before has ended) and its input is there (the op that
makes it has ended, and the transfer has arrived). What is later decides, and is what it waited for.
The causes of idle time are in ``idle.py``.

The arrival that a run records is the end of the reader's wait, so it counts only where the expected
transfer would not have been over before the rank was free.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Floats
from zerobubble.graph import places, producers, run_order
from zerobubble.ir import Codes, Kind, Op
from zerobubble.jit import hot
from zerobubble.simulate import Timeline
from zerobubble.view.idle import CAUSES, Idle, find_idle, held_by_memory

NOTHING, INPUT, ORDER = range(3)


class Split(NamedTuple):
    """How the makespan divides along the critical path; the three add up to it."""

    compute: float
    transfer: float
    wait: float


class PeakOp(NamedTuple):
    """The first op after which a rank holds most, the memory then, and when it started."""

    op: Op
    memory: float
    start: float


@dataclass(frozen=True, eq=False)
class Facts:
    """What can be said about a timeline, simulated or measured; each thing computed when asked for.

    Attributes:
        timeline: what ran when.
        limits: memory limit of each rank in the unit of the activation sizes, or None.
        arrived: by op code, when the wait for the op's output was over on the rank that it travels
            to, where that was measured, else nan; otherwise it is the op's end and the transfer of
            the costs.

    >>> from zerobubble import Costs, build, simulate
    >>> found = Facts(simulate(build("1f1b", num_ranks=2, num_microbatches=2), Costs.uniform(2)))
    >>> found.idle_by_cause()[0]
    {'waits for BW of stage 1 on rank 1': 3.0}
    >>> found.split
    Split(compute=9.0, transfer=0.0, wait=0.0)
    """

    timeline: Timeline
    limits: Floats | None = None
    arrived: Floats | None = None

    @cached_property
    def codes(self) -> Codes:
        """The op codes."""
        return self.timeline.schedule.flat()[0]

    @cached_property
    def offsets(self) -> Codes:
        """Where each rank's ops begin, and the last end."""
        return self.timeline.schedule.flat()[1]

    @cached_property
    def ranks(self) -> Codes:
        """The rank of each op."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def start(self) -> Floats:
        """When each op started."""
        return np.concatenate(self.timeline.start)

    @cached_property
    def end(self) -> Floats:
        """When each op ended."""
        return np.concatenate(self.timeline.end)

    @cached_property
    def origin(self) -> float:
        """The first start of any rank."""
        return float(self.start.min(initial=np.inf))

    @cached_property
    def finish(self) -> float:
        """The last end of any rank."""
        return float(self.end.max(initial=-np.inf))

    @cached_property
    def tiny(self) -> float:
        """Times up to this are rounding, and count as none."""
        return 1e-9 * (self.finish - self.origin)

    @cached_property
    def index_of(self) -> Codes:
        """For each op code the index of the op in these arrays, or -1."""
        ranks, indices = places(self.timeline.schedule)
        return np.where(ranks >= 0, self.offsets[ranks] + indices, -1)

    @cached_property
    def needs(self) -> Codes:
        """Index of the op whose output each op needs, or -1."""
        needs = producers(self.timeline.schedule)[self.codes]
        return np.where(needs >= 0, self.index_of[needs], -1)

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether an op is the first of its rank."""
        first = np.zeros(len(self.codes), dtype=bool)
        first[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        return first

    @cached_property
    def free(self) -> Floats:
        """When the rank was free for each op: the end of the op before it, or the origin."""
        before = np.concatenate([[self.origin], self.end[:-1]])
        return np.where(self.is_first, self.origin, before)

    @cached_property
    def made(self) -> Floats:
        """When the input of each op had been computed; the origin where it needs none."""
        return np.where(self.needs >= 0, self.end[self.needs], self.origin)

    @cached_property
    def input_there(self) -> Floats:
        """When the input of each op was on its rank."""
        schedule, costs = self.timeline.schedule, self.timeline.costs
        travels = (self.needs >= 0) & (self.ranks[self.needs] != self.ranks)
        kinds, stages, _ = schedule.fields(self.codes)
        boundary = np.where(kinds == Kind.F, stages - 1, stages)
        there: Floats = self.made + np.where(travels, costs.transfer[boundary], 0.0)
        if self.arrived is not None:
            measured = self.arrived[self.codes[self.needs]]
            counts = travels & ~np.isnan(measured) & (there > self.free)
            there = np.where(counts, measured, there)
        return there

    @cached_property
    def waited_for(self) -> Codes:
        """What decided when each op started: NOTHING, its INPUT, or the ORDER of its rank."""
        waited = np.where(self.free - self.input_there > self.tiny, ORDER, NOTHING)
        return np.where(self.input_there - self.free > self.tiny, INPUT, waited)

    @cached_property
    def wait_for_input(self) -> Floats:
        """How long the rank was free and the input not there."""
        there = np.minimum(self.input_there, self.start)
        return self._from_zero(there - self.free)

    @cached_property
    def wait_for_rank(self) -> Floats:
        """How long the input was there and the rank busy with ops before it."""
        free = np.minimum(self.free, self.start)
        return self._from_zero(free - self.input_there)

    @cached_property
    def late(self) -> Floats:
        """How long both were there before the op started: 0 where it was simulated."""
        return self._from_zero(self.start - np.maximum(self.free, self.input_there))

    @cached_property
    def slack(self) -> Floats:
        """How much later each op could have ended without delaying the end of the step."""
        return self._slack(np.full(len(self.offsets) - 1, self.finish))

    @cached_property
    def span_slack(self) -> Floats:
        """Likewise without making the span longer, the first op of each rank at its place."""
        first = [float(start[0]) if len(start) else 0.0 for start in self.timeline.start]
        return self._slack(np.asarray(first) + self.timeline.span)

    def _slack(self, deadlines: Floats) -> Floats:
        order = self.index_of[run_order(self.timeline.schedule)]
        there = np.minimum(self.input_there, self.start)
        travel = np.where(self.needs >= 0, np.maximum(there - self.made, 0.0), 0.0)
        latest = deadlines[self.ranks]
        columns = (self.needs, self.is_first, self.end - self.start, travel)
        _latest_ends(order[::-1].copy(), *columns, latest, work=len(order))
        return self._from_zero(latest - self.end)

    def _from_zero(self, times: Floats) -> Floats:
        """Set times that are negative or rounding to 0."""
        return np.where(times > self.tiny, times, 0.0)

    @cached_property
    def memory_after(self) -> Floats:
        """Activation memory of an op's rank after it: F allocates, B, W and BW free."""
        kinds, stages, _ = self.timeline.schedule.fields(self.codes)
        changes = self.timeline.costs.memory_changes()[kinds, stages]
        return np.concatenate([np.cumsum(part) for part in np.split(changes, self.offsets[1:-1])])

    @cached_property
    def memory_before(self) -> Floats:
        """Likewise before it."""
        shifted = np.concatenate([[0.0], self.memory_after[:-1]])
        return np.where(self.is_first, 0.0, shifted)

    @cached_property
    def is_held_by_memory(self) -> NDArray[np.bool_]:
        """Whether a forward could have run before an op but for the memory limit, and no W."""
        return held_by_memory(self)

    @cached_property
    def idle(self) -> Idle:
        """The idle intervals of all ranks with their causes."""
        return find_idle(self)

    def name(self, cause: int) -> str:
        """Write a cause of ``idle`` in words."""
        if cause < len(CAUSES):
            return CAUSES[cause]
        placement = self.timeline.schedule.placement
        kind, stage = divmod(cause - len(CAUSES), placement.num_stages)
        return (
            f"waits for {Kind(kind).name} of stage {stage} on rank {placement.stage_to_rank[stage]}"
        )

    def idle_by_cause(self) -> list[dict[str, float]]:
        """Sum the idle time of each rank by cause, longest first.

        A rank's sums and its work add up to the makespan.
        """
        found: list[dict[str, float]] = []
        for rank in range(len(self.offsets) - 1):
            mine = self.idle.rank == rank
            causes, inverse = np.unique(self.idle.cause[mine], return_inverse=True)
            sums = np.bincount(inverse, (self.idle.end - self.idle.start)[mine], len(causes))
            pairs = sorted(zip(sums.tolist(), causes.tolist(), strict=True), key=_longest_first)
            found.append({self.name(cause): time for time, cause in pairs})
        return found

    @cached_property
    def path(self) -> Codes:
        """Indices of the ops that decide when the last one ends, in time order.

        From the op that ends last, each step back goes to what was later: the op before on the
        rank, or the one whose output was needed.
        """
        return np.array([*self._path_backward()][::-1], dtype=np.int64)

    def _path_backward(self) -> Iterator[int]:
        last = self.offsets[1:][np.diff(self.offsets) > 0] - 1
        index = int(last[self.end[last].argmax()]) if len(last) else -1
        while index >= 0:
            yield index
            before = -1 if self.is_first[index] else index - 1
            need = int(self.needs[index])
            later = need >= 0 and (before < 0 or self.input_there[index] > self.free[index])
            index = need if later else before

    @cached_property
    def split(self) -> Split:
        """The makespan along the critical path: compute, transfers, and neither."""
        path = self.path
        compute = float((self.end[path] - self.start[path]).sum())
        is_hop = self.ranks[path[1:]] != self.ranks[path[:-1]]
        there = np.minimum(self.input_there[path[1:]], self.start[path[1:]])
        hops = np.where(is_hop, np.maximum(there - self.end[path[:-1]], 0.0), 0.0)
        transfer = float(hops.sum())
        wait = self.finish - self.origin - compute - transfer
        return Split(compute, transfer, wait if wait > self.tiny else 0.0)

    def peak_op(self, rank: int) -> PeakOp | None:
        """Find the op that raises a rank's memory to its peak; None for a rank without ops."""
        first, end = self.offsets[rank : rank + 2].tolist()
        if first == end:
            return None
        index = first + int(self.memory_after[first:end].argmax())
        op = self.timeline.schedule.op(int(self.codes[index]))
        return PeakOp(op, float(self.memory_after[index]), float(self.start[index]))


@hot
def _latest_ends(
    order: Codes,
    needs: Codes,
    is_first: NDArray[np.bool_],
    durations: Floats,
    travel: Floats,
    latest: Floats,
) -> None:
    """Lower the latest ends to what the ops that come after allow; ``order`` is backward."""
    for index in order:
        begin = latest[index] - durations[index]
        if not is_first[index]:
            latest[index - 1] = min(latest[index - 1], begin)
        if needs[index] >= 0:
            latest[needs[index]] = min(latest[needs[index]], begin - travel[index])


def _longest_first(pair: tuple[float, int]) -> tuple[float, int]:
    return -pair[0], pair[1]
