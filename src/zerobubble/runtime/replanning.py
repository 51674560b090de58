"""Is another order of the ops faster, now that their times have been measured?"""

from dataclasses import dataclass

from zerobubble.costs import Costs, Floats
from zerobubble.formats.json import dumps, loads
from zerobubble.ir import Schedule
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.pipeline import Pipeline
from zerobubble.runtime.trace import measured_costs
from zerobubble.search import search
from zerobubble.search.problem import Objective
from zerobubble.simulate import Timeline, simulate


@dataclass(frozen=True)
class Replanned:
    """What measured times have led to; on rank 0, which has measured.

    Attributes:
        before: the schedule that ran, simulated with the measured times.
        after: the schedule that runs from now on, likewise; the same one if none is faster.
        costs: the measured times in ms; transfers and activations as they were expected.
    """

    before: Timeline
    after: Timeline
    costs: Costs


def replan(
    pipe: Pipeline,
    expected: Costs | None = None,
    memory: Floats | None = None,
    objective: Objective = "span",
) -> Replanned | None:
    """Search a schedule for the times of the recorded steps, and run it from the next step on.

    The partition, the placement and the number of microbatches stay, so that losses and parameters
    keep their bits. All ranks must call this together.

    Args:
        pipe: that has recorded at least one step.
        expected: costs of the stages so far, for what is not measured: transfers, activations, and
            how a backward that is not split divides into B and W.
        memory: limit of every rank in the unit of ``expected``'s activations; by default what the
            schedule takes that runs now.
        objective: what is to become shorter.

    Returns:
        What came out, on rank 0; None elsewhere, and where no step has been recorded.
    """
    timelines = pipe.timelines()
    with naming_the_cause(pipe.rank, "search of a schedule for the measured times"):
        found = None
        if timelines:
            costs = measured_costs(timelines, expected)
            found = _search(pipe.schedule, costs, memory, objective)
        text = None
        if found is not None and found.after.schedule is not pipe.schedule:
            text = dumps(found.after.schedule)
        text = pipe.transport.share_object(text)[0]
    if text is not None:
        pipe.change_schedule(loads(text, "the schedule of rank 0"))
    return found


def _search(
    schedule: Schedule, costs: Costs, memory: Floats | None, objective: Objective
) -> Replanned:
    before = simulate(schedule, costs)
    limits = before.peak_memory_per_rank if memory is None else memory
    found = search(
        costs,
        schedule.num_ranks,
        schedule.num_microbatches,
        limits,
        schedule.placement,
        objective,
        "quick",
    )
    is_faster = found.value < getattr(before, objective)
    return Replanned(before, found.timeline if is_faster else before, costs)
