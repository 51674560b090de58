"""Where does the time of a timeline go? Waiting, slack, idle time and its causes, memory.

All arrays run over the ops of all ranks, rank after rank (``Schedule.flat``), so that 100 000 ops
take a fraction of a second. The page computes the same in ``page/model/facts.js``; the tests hold
both to each other.

An op can run when its rank is free (the op before has ended, and so have the copies to the host
which stand between them), its input is there (the op that makes it has ended, and the transfer has
arrived), and what was offloaded is back. What is latest decides, and is what it waited for. A copy
takes its turn on its engine: for O its F is the input, for L that the compute came to it. The
causes of idle time are in ``idle.py``.

The arrival that a run records is the end of the reader's wait, so it counts only where the expected
transfer would not have been over before the rank was free.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes, Kind, Op
from zerobubble.jit import hot
from zerobubble.simulate import Timeline
from zerobubble.view.idle import CAUSES, COPIES, Idle, find_idle, held_by_memory
from zerobubble.waits import Waits, find_waits, index_of_codes, order_of_waits

NOTHING, INPUT, ORDER, LOAD = range(4)
_O, _L = int(Kind.O), int(Kind.L)


class Split(NamedTuple):
    """How the makespan divides along the critical path; the four add up to it.

    A transfer is from rank to rank, copies are to the host and back.
    """

    compute: float
    transfer: float
    copies: float
    wait: float


class PeakOp(NamedTuple):
    """The first op after which a rank holds most, the memory then, and since when it holds it."""

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
    Split(compute=9.0, transfer=0.0, copies=0.0, wait=0.0)
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
        return TOLERANCE * (self.finish - self.origin)

    @cached_property
    def index_of(self) -> Codes:
        """For each op code the index of the op in these arrays, or -1."""
        return index_of_codes(self.timeline.schedule)

    @cached_property
    def waits(self) -> Waits:
        """Indices of what each op comes after, or -1."""
        shared = self.timeline.costs.ranks_per_engine
        return find_waits(self.timeline.schedule, self.start, self.end, shared)

    @property
    def needs(self) -> Codes:
        """Index of the op whose output each op needs, or -1; of L, what came before it."""
        return self.waits.needs

    @cached_property
    def kinds(self) -> Codes:
        """The kind of each op."""
        return self.timeline.schedule.fields(self.codes)[0]

    @cached_property
    def is_copy(self) -> NDArray[np.bool_]:
        """Whether a copy engine does it, beside the compute."""
        copies: NDArray[np.bool_] = (self.kinds == Kind.O) | (self.kinds == Kind.L)
        return copies

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether an op is the first of its rank."""
        first = np.zeros(len(self.codes), dtype=bool)
        first[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        return first

    @cached_property
    def free(self) -> Floats:
        """When the rank, or the engine of a copy, was free for each op: at first, the origin."""
        return self._end_of(self.waits.turn)

    @cached_property
    def computed(self) -> Floats:
        """When the rank had computed the op before each op; at first, the origin."""
        return self._end_of(self.waits.computed)

    @cached_property
    def made(self) -> Floats:
        """When the input of each op had been computed; the origin where it needs none."""
        return self._end_of(self.needs)

    @cached_property
    def loaded(self) -> Floats:
        """When what each op reads was back on the device; the origin where it never left."""
        return self._end_of(self.waits.load)

    def _end_of(self, places: Codes) -> Floats:
        return np.where(places >= 0, self.end[places], self.origin)

    @cached_property
    def input_there(self) -> Floats:
        """When the input of each op was on its rank."""
        schedule, costs = self.timeline.schedule, self.timeline.costs
        travels = (self.needs >= 0) & (self.ranks[self.needs] != self.ranks)
        _, stages, _ = schedule.fields(self.codes)
        boundary = np.where(self.kinds == Kind.F, stages - 1, stages)
        there: Floats = self.made + np.where(travels, costs.transfer[boundary], 0.0)
        if self.arrived is not None:
            measured = self.arrived[self.codes[self.needs]]
            counts = travels & ~np.isnan(measured) & (there > self.free)
            there = np.where(counts, measured, there)
        return there

    @cached_property
    def all_there(self) -> Floats:
        """When all that each op reads was there."""
        return np.maximum(self.input_there, self.loaded)

    @cached_property
    def waited_for(self) -> Codes:
        """What decided when each op started: NOTHING, its INPUT, its LOAD, or its turn (ORDER)."""
        waited = np.where(self.free - self.all_there > self.tiny, ORDER, NOTHING)
        which = np.where(self.loaded > self.input_there, LOAD, INPUT)
        return np.where(self.all_there - self.free > self.tiny, which, waited)

    @cached_property
    def wait_for_input(self) -> Floats:
        """How long the rank was free and what the op reads not there."""
        there = np.minimum(self.all_there, self.start)
        return self._from_zero(there - self.free)

    @cached_property
    def wait_for_rank(self) -> Floats:
        """How long all that the op reads was there and the rank busy with what comes before it."""
        free = np.minimum(self.free, self.start)
        return self._from_zero(free - self.all_there)

    @cached_property
    def late(self) -> Floats:
        """How long both were there before the op started: 0 where it was simulated."""
        return self._from_zero(self.start - np.maximum(self.free, self.all_there))

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
        shared = self.timeline.costs.ranks_per_engine
        order = order_of_waits(self.timeline.schedule, self.start, self.end, shared)
        there = np.minimum(self.input_there, self.start)
        travel = np.where(self.needs >= 0, np.maximum(there - self.made, 0.0), 0.0)
        latest = deadlines[self.ranks]
        columns = (*self.waits[1:], self.kinds, self.is_first, self.end - self.start, travel)
        _latest_ends(order[::-1].copy(), *columns, latest, work=len(order))
        return self._from_zero(latest - self.end)

    def _from_zero(self, times: Floats) -> Floats:
        """Set times that are negative or rounding to 0."""
        return np.where(times > self.tiny, times, 0.0)

    @cached_property
    def memory_changes(self) -> Floats:
        """What each op adds to the activation memory of its rank."""
        of_rank, schedule = self.timeline.costs.memory_changes_of, self.timeline.schedule
        return np.concatenate([of_rank(schedule, rank) for rank in range(schedule.num_ranks)])

    @cached_property
    def memory_times(self) -> Floats:
        """When it does so."""
        ranks = range(self.timeline.schedule.num_ranks)
        return np.concatenate([self.timeline.memory_curve(rank)[0] for rank in ranks])

    @cached_property
    def memory_after(self) -> Floats:
        """Activation memory of an op's rank after it: F, L and R allocate, B, W, BW and O free."""
        parts = np.split(self.memory_changes, self.offsets[1:-1])
        return np.concatenate([np.cumsum(part) for part in parts])

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
        if kind in COPIES:
            return f"waits for {COPIES[Kind(kind)]} of stage {stage}"
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

        From the op that ends last, each step back goes to what was latest: what its rank or engine
        did before, the op whose output was needed, or the copy back.
        """
        return np.array([*self._path_backward()][::-1], dtype=np.int64)

    def _path_backward(self) -> Iterator[int]:
        last = self.offsets[1:][np.diff(self.offsets) > 0] - 1
        index = int(last[self.end[last].argmax()]) if len(last) else -1
        while index >= 0:
            yield index
            index = self.waits.latest(index, (self.free, self.input_there, self.loaded))

    @cached_property
    def split(self) -> Split:
        """The makespan along the critical path: compute, transfers, copies, and none of these."""
        path = self.path
        lasts = self.end[path] - self.start[path]
        is_copy = self.is_copy[path]
        compute = float(lasts[~is_copy].sum())
        comes_from = self.needs[path[1:]] == path[:-1]
        is_hop = comes_from & (self.ranks[path[1:]] != self.ranks[path[:-1]])
        there = np.minimum(self.input_there[path[1:]], self.start[path[1:]])
        hops = np.where(is_hop, np.maximum(there - self.end[path[:-1]], 0.0), 0.0)
        transfer, copies = float(hops.sum()), float(lasts[is_copy].sum())
        wait = self.finish - self.origin - compute - transfer - copies
        return Split(compute, transfer, copies, wait if wait > self.tiny else 0.0)

    def peak_op(self, rank: int) -> PeakOp | None:
        """Find the op that raises a rank's memory to its peak; None for a rank without ops."""
        first, end = self.offsets[rank : rank + 2].tolist()
        if first == end:
            return None
        index = first + int(self.memory_after[first:end].argmax())
        op = self.timeline.schedule.op(int(self.codes[index]))
        return PeakOp(op, float(self.memory_after[index]), float(self.memory_times[index]))


@hot
def _latest_ends(
    order: Codes,
    turn: Codes,
    needs: Codes,
    load: Codes,
    kinds: Codes,
    is_first: NDArray[np.bool_],
    durations: Floats,
    travel: Floats,
    latest: Floats,
) -> None:
    """Lower the latest ends to what the ops that come after allow; ``order`` is backward."""
    for index in order:
        begin = latest[index] - durations[index]
        if needs[index] >= 0:
            latest[needs[index]] = min(latest[needs[index]], begin - travel[index])
        if load[index] >= 0:
            latest[load[index]] = min(latest[load[index]], begin)
        if kinds[index] in (_O, _L) and turn[index] >= 0:
            latest[turn[index]] = min(latest[turn[index]], begin)
        place, is_passed = index, kinds[index] != _O
        while is_passed and not is_first[place]:
            place -= 1
            if kinds[place] != _L:
                latest[place] = min(latest[place], begin)
            is_passed = kinds[place] in (_O, _L)


def _longest_first(pair: tuple[float, int]) -> tuple[float, int]:
    return -pair[0], pair[1]
