"""Which partition, placement, microbatch size and schedule make the shortest step together?

Every microbatch size that divides the batch is tried with every placement: layers are balanced,
and a schedule is searched within the memory that is left. The best of these are improved by moving
layers and searching again. A higher effort starts from what the lower ones have found, so that it
is never worse. All of it is counted, nothing timed: a profile always gives the same
plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.errors import UsageError
from zerobubble.plan.asked import read_microbatch_sizes, read_task
from zerobubble.plan.data import Plan
from zerobubble.plan.forecast import forecast
from zerobubble.plan.moving import improve
from zerobubble.plan.names import bytes_up
from zerobubble.plan.placing import Placements
from zerobubble.plan.planner import Choice, Planner, merit
from zerobubble.plan.reasons import GIB, reasons
from zerobubble.plan.shortage import shortage
from zerobubble.plan.task import Candidate, better
from zerobubble.profile import Profile
from zerobubble.search.effort import EFFORTS
from zerobubble.search.relief import Offload, Recompute


def plan_jointly(
    profile: Profile,
    num_ranks: int,
    batch_size: int,
    memory: ArrayLike | None,
    microbatch_sizes: Sequence[int] | None,
    placements: Placements | None,
    validate: str,
    effort: str,
    schedule: str | None,
    offload: Offload,
    recompute: Recompute,
) -> Plan:
    """Make a plan; arguments and errors as for ``zerobubble.plan.make_plan``."""
    task = read_task(profile, num_ranks, batch_size, memory, validate, effort, offload, recompute)
    sizes = read_microbatch_sizes(task, microbatch_sizes)
    planner = Planner(task, schedule)
    choices = [(size, place) for size in sizes for place in planner.placements(placements)]
    quick = planner.with_effort(next(iter(EFFORTS)))
    starts, found = _start(quick, choices)
    for more in _efforts_above_quick(planner):
        found = planner.with_effort(more).deepen(starts, found)
    if not found:
        raise shortage(task, choices)
    if not found[0].fits:
        raise _schedule_shortage(planner, choices, found[0])
    return _plan(planner, choices, starts, [each for each in found if each.fits])


def _start(
    planner: Planner, choices: Sequence[Choice]
) -> tuple[dict[Choice, Candidate], list[Candidate]]:
    """Plan with the least effort: starts, and candidates with the best first.

    What is free to stay on the device is planned without offload and recompute first.
    """
    task = planner.task
    if not task.is_relieved or task.offload == "all" or task.recompute == "full":
        starts = planner.starts(choices)
        return starts, planner.improve_best(starts)
    plain = planner.plain
    without = plain.starts(choices)
    found = plain.improve_best(without)
    starts = planner.relieve(without, choices)
    changed = {
        choice: start for choice, start in starts.items() if start is not without.get(choice)
    }
    return starts, sorted([*planner.improve_best(changed), *found], key=merit)


def _efforts_above_quick(planner: Planner) -> list[str]:
    """List the efforts up to that of a planner; a schedule that is given is not searched."""
    names = list(EFFORTS)
    return names[1 : names.index(planner.task.effort) + 1] if planner.schedule is None else []


def _schedule_shortage(planner: Planner, choices: Sequence[Choice], best: Candidate) -> UsageError:
    """Say how much memory the schedule asked for needs, so that a plan has been made within it."""
    task, more = planner.task, 0.0
    found = best
    while not found.fits:
        more += found.excess_bytes
        roomy = replace(planner, task=replace(task, memory=task.memory + more))
        found = roomy.improve_best(roomy.starts(choices))[0]
    lack = bytes_up(best.excess_bytes)
    even = (task.memory == task.memory[0]).all()
    advice = (
        f"{bytes_up(task.memory[0] + more)} a rank" if even else f"{bytes_up(more)} more a rank"
    )
    return UsageError(
        f"{planner.schedule} does not fit into the memory: with any layers that were tried, "
        f"a rank lacks {lack} or more: allow {advice}, or let a schedule be searched"
    )


def _plan(
    planner: Planner,
    choices: Sequence[Choice],
    starts: Mapping[Choice, Candidate],
    found: Sequence[Candidate],
) -> Plan:
    task, best = planner.task, found[0]
    profile, is_limited = task.profile, bool(np.isfinite(task.memory).any())
    expected = forecast(
        profile,
        best.microbatch_size,
        best.layers_per_stage,
        best.schedule,
        task.validate,
        None if task.is_relieved else task.memory,
    )
    start = starts[best.microbatch_size, best.placement]
    with_more = _with_more_memory(planner, choices, starts, best) if is_limited else None
    return Plan(
        profile.model,
        profile.layer_names,
        best.layers_per_stage,
        best.schedule,
        best.microbatch_size,
        best.costs,
        task.validate,
        tuple(task.memory.tolist()) if is_limited else None,
        expected,
        reasons(task, found, start, expected, with_more),
    )


def _with_more_memory(
    planner: Planner,
    choices: Sequence[Choice],
    starts: Mapping[Choice, Candidate],
    best: Candidate,
) -> Candidate:
    """Plan again with one GiB more a rank: from the best, and from what did not fit before."""
    roomy = replace(planner, task=replace(planner.task, memory=planner.task.memory + GIB))
    found = better(best, roomy.find_again(best)) or best
    others = roomy.with_effort(next(iter(EFFORTS))).starts(
        [choice for choice in choices if choice not in starts]
    )
    for each in others.values():
        found = better(found, each) or found
    return improve(roomy.task, found, roomy.find_again)
