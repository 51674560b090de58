"""Which partition, placement, microbatch size and schedule make the shortest step together?

Every microbatch size that divides the batch is tried with every placement: layers are balanced,
and a schedule is searched within the memory that is left. The best of these are improved by moving
layers and searching again. All of it is counted, nothing timed: a profile always gives the same
plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.data import Plan
from zerobubble.plan.forecast import forecast
from zerobubble.plan.moving import improve
from zerobubble.plan.names import bytes_up
from zerobubble.plan.pace import Pace
from zerobubble.plan.partition import partition
from zerobubble.plan.placing import Placements, placements_to_try
from zerobubble.plan.reasons import GIB, reasons
from zerobubble.plan.scheduling import known_candidates, search_schedule
from zerobubble.plan.shortage import shortage
from zerobubble.plan.task import Candidate, Task, better, judge
from zerobubble.profile import Profile, stage_costs
from zerobubble.schedules import recipe
from zerobubble.schedules.registry import parse_spec
from zerobubble.search.effort import effort_named
from zerobubble.verify import limits_of_ranks

# So many of the best starts are improved.
_NUM_IMPROVED = 4

Choice = tuple[int, Placement]


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
) -> Plan:
    """Make a plan; arguments and errors as for ``zerobubble.plan.make_plan``."""
    task = _task(profile, num_ranks, batch_size, memory, validate, effort)
    sizes = _microbatch_sizes(task, microbatch_sizes)
    planner = _Planner(task, schedule)
    choices = [(size, place) for size in sizes for place in planner.placements(placements)]
    starts = planner.starts(choices)
    found = planner.improve_best(starts)
    if not found:
        raise shortage(task, choices)
    if not found[0].fits:
        raise _schedule_shortage(planner, choices, found[0])
    return _plan(planner, choices, starts, [each for each in found if each.fits])


def _task(
    profile: Profile,
    num_ranks: int,
    batch_size: int,
    memory: ArrayLike | None,
    validate: str,
    effort: str,
) -> Task:
    for what, count in {"ranks": num_ranks, "batch size": batch_size}.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise UsageError(f"{what} must be a whole number of 1 or more, not {count!r}")
    if num_ranks > profile.num_layers:
        raise UsageError(
            f"{profile.num_layers} layers cannot be shared by {num_ranks} ranks, each needs "
            f"one: use at most {profile.num_layers} ranks, or profile smaller layers"
        )
    if validate not in ("post", "sync"):
        raise UsageError(f"validate must be 'post' or 'sync', not {validate!r}")
    effort_named(effort)
    if memory is None:
        memory = np.inf if profile.memory_bytes is None else profile.memory_bytes
    limits = limits_of_ranks(memory, num_ranks)
    return Task(profile, int(num_ranks), int(batch_size), limits, validate, effort)


def _microbatch_sizes(task: Task, asked: Sequence[int] | None) -> list[int]:
    """List the sizes to try: those of the profile that divide the batch."""
    known = list(task.profile.layers)
    for size in asked or ():
        task.profile.at(size)
    sizes = [size for size in known if not task.batch_size % size and (not asked or size in asked)]
    if not sizes:
        raise UsageError(
            f"a batch of {task.batch_size} samples cannot be cut into microbatches of "
            f"{', '.join(map(str, asked or known))}: choose a multiple, or profile other sizes"
        )
    return sizes


@dataclass(frozen=True, eq=False)
class _Planner:
    """How one choice of microbatch size and placement is started and improved."""

    task: Task
    schedule: str | None

    def placements(self, asked: Placements | None) -> list[Placement]:
        """List the placements to try."""
        task = self.task
        if self.schedule is None:
            return placements_to_try(task.profile.num_layers, task.num_ranks, asked)
        name, parameters = parse_spec(self.schedule)
        place = recipe(name).place(task.num_ranks, **parameters)
        if asked and place not in placements_to_try(task.profile.num_layers, task.num_ranks, asked):
            raise UsageError(f"{self.schedule} has placement {place}: leave out the placement")
        return placements_to_try(task.profile.num_layers, task.num_ranks, place)

    def start(self, microbatch_size: int, placement: Placement) -> Candidate | None:
        """Balance the layers and find the best schedule for that, if any fits."""
        task, tables = self.task, self.task.tables(microbatch_size)
        found = partition(
            [layer.compute_ms for layer in task.profile.at(microbatch_size)],
            placement.num_stages,
            placement,
            tables.least_bytes,
            task.memory,
        )
        if found is None:
            return None
        parts = (microbatch_size, found.layers_per_stage, placement)
        best = self.find(*parts)
        if self.schedule is None:
            for candidate in known_candidates(task, *parts):
                best = better(best, candidate)
        return best

    def find(
        self, microbatch_size: int, layers_per_stage: tuple[int, ...], placement: Placement
    ) -> Candidate | None:
        """Find the best schedule of a partition, or build the one asked for."""
        task = self.task
        if self.schedule is None:
            return search_schedule(task, microbatch_size, layers_per_stage, placement)
        name, parameters = parse_spec(self.schedule)
        layers = layers_of_stages(layers_per_stage)
        costs = stage_costs(task.profile, microbatch_size, layers, placement)
        count = task.num_microbatches(microbatch_size)
        built = recipe(name).build(task.num_ranks, count, costs, **parameters)
        return judge(task, microbatch_size, layers_per_stage, Pace(built))

    def starts(self, choices: Sequence[Choice]) -> dict[Choice, Candidate]:
        """Start every choice that fits."""
        found = {choice: self.start(*choice) for choice in choices}
        return {choice: start for choice, start in found.items() if start is not None}

    def improve_best(self, starts: Mapping[Choice, Candidate]) -> list[Candidate]:
        """Move layers and search schedules in turn, for the best starts; give all, best first."""
        ranked = sorted(starts.values(), key=_merit)
        improved = [improve(self.task, start, self.find_again) for start in ranked[:_NUM_IMPROVED]]
        return sorted([*improved, *ranked[_NUM_IMPROVED:]], key=_merit)

    def find_again(self, moved: Candidate) -> Candidate | None:
        """Find the best schedule after layers have moved."""
        return self.find(moved.microbatch_size, moved.layers_per_stage, moved.placement)


def _merit(candidate: Candidate) -> tuple[float, float]:
    return candidate.excess_bytes, candidate.step_ms


def _schedule_shortage(planner: _Planner, choices: Sequence[Choice], best: Candidate) -> UsageError:
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
    planner: _Planner,
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
        task.memory,
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
    planner: _Planner,
    choices: Sequence[Choice],
    starts: Mapping[Choice, Candidate],
    best: Candidate,
) -> Candidate:
    """Plan again with one GiB more a rank: from the best, and from what did not fit before."""
    roomy = replace(planner, task=replace(planner.task, memory=planner.task.memory + GIB))
    found = better(best, roomy.find_again(best)) or best
    others = roomy.starts([choice for choice in choices if choice not in starts])
    for each in others.values():
        found = better(found, each) or found
    return improve(roomy.task, found, roomy.find_again)
