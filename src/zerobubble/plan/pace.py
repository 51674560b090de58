"""How long does a step of a fixed order of ops take when the costs of its stages change?

What moving layers compares thousands of times: everything that only depends on the order is worked
out once.
"""

from typing import NamedTuple

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.graph import producers, run_order
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot
from zerobubble.simulate import ranks_of_ops, run_in_order, simulate, travels_of_ops

# Compiling pays off early when the same order is run so often.
_USUAL_NUMBER_OF_RUNS = 1_000


class Paced(NamedTuple):
    """What a step takes of every rank: its span and its largest sum of activations.

    Attributes:
        spans: from the start of its first op to the end of its last.
        makespan: of all ranks.
        peaks: in the unit of ``costs.activation``.
    """

    spans: Floats
    makespan: float
    peaks: Floats


class Pace:
    """A schedule whose ops are timed with one set of costs after the other."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.order, self.needs = run_order(schedule), producers(schedule)
        self.ranks = ranks_of_ops(schedule)
        self.first = np.array([codes[0] for codes in schedule.orders])
        self.start, self.end = np.zeros(schedule.num_codes), np.zeros(schedule.num_codes)

    def __call__(self, costs: Costs) -> Paced:
        """Run every op as early as its rank's order and its input allow, as ``simulate`` does."""
        if self.schedule.num_kinds > Kind.R:
            return self._with_copies(costs)
        schedule, num_ranks = self.schedule, self.schedule.num_ranks
        count, work = schedule.num_microbatches, _USUAL_NUMBER_OF_RUNS * len(self.order)
        free, held, peaks = (np.zeros(num_ranks) for _ in range(3))
        durations, travels = costs.durations().reshape(-1), travels_of_ops(schedule, costs)
        times = (durations, travels, free, self.start, self.end)
        run_in_order(self.order, self.needs, count, self.ranks, *times, work=work)
        changes = costs.memory_changes().reshape(-1)
        _fill_memory(self.order, count, self.ranks, changes, held, peaks, work=work)
        begins = self.start[self.first]
        return Paced(free - begins, float(free.max() - begins.min()), peaks)

    def _with_copies(self, costs: Costs) -> Paced:
        timeline = simulate(self.schedule, costs)
        spans, peaks = np.array(timeline.span_per_rank), np.array(timeline.peak_memory_per_rank)
        return Paced(spans, timeline.makespan, peaks)


@hot
def _fill_memory(
    order: Codes, num_microbatches: int, ranks: Codes, changes: Floats, held: Floats, peaks: Floats
) -> None:
    """Add up what the ops of every rank allocate and free, and note the largest sum."""
    for code in order:
        row = code // num_microbatches
        rank = ranks[row]
        held[rank] += changes[row]
        peaks[rank] = max(peaks[rank], held[rank])
