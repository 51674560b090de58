"""Which schedule is the best for the stages of one partition?"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Codes, Kind, Placement, Schedule
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.pace import Pace
from zerobubble.plan.task import Candidate, Task, better, judge
from zerobubble.profile import stage_costs
from zerobubble.search import search
from zerobubble.search.known import Known, known_schedules

# Beyond so many ops, building all registered schedules takes seconds.
_MOST_OPS = 20_000


def search_schedule(
    task: Task, microbatch_size: int, layers_per_stage: tuple[int, ...], placement: Placement
) -> Candidate | None:
    """Search a schedule within the memory that is left; None if there is none.

    Stages whose W always follow their B run unsplit if that is faster.
    """
    weights = task.tables(microbatch_size).weights
    room = task.memory - task.sums(weights, layers_per_stage, placement)
    if (room < 0).any():
        return None
    layers = layers_of_stages(layers_per_stage)
    costs = stage_costs(task.profile, microbatch_size, layers, placement)
    count = task.num_microbatches(microbatch_size)
    try:
        found = search(
            costs,
            task.num_ranks,
            count,
            room,
            placement,
            task.objective,
            task.effort,
            offload=task.offload,
            recompute=task.recompute,
        ).schedule
    except UsageError:
        return None
    best: Candidate | None = None
    for schedule in (found, fused(found)):
        best = better(best, judge(task, microbatch_size, layers_per_stage, Pace(schedule)))
    return best if best is not None and best.fits else None


def known_candidates(
    task: Task, microbatch_size: int, layers_per_stage: tuple[int, ...], placement: Placement
) -> Iterator[Candidate]:
    """Yield what the registered schedules of a placement make of a partition, if it fits.

    A search has compared the spans of those with split backwards, so these are left out where
    building them again takes long.
    """
    costs = stage_costs(
        task.profile, microbatch_size, layers_of_stages(layers_per_stage), placement
    )
    count = task.num_microbatches(microbatch_size)
    for build in known_schedules(placement).values():
        if 3 * placement.num_stages * count > _MOST_OPS and _splits(build, placement):
            continue
        try:
            schedule = build(task.num_ranks, count, costs)
        except (ScheduleError, UsageError):  # undefined, or too many ops
            continue
        if schedule.has_copies and task.offload == "off":
            continue
        candidate = judge(task, microbatch_size, layers_per_stage, Pace(schedule))
        if candidate.fits:
            yield candidate


def _splits(build: Known, placement: Placement) -> bool:
    """Say whether a registered schedule splits backwards, by a small one of its kind."""
    num_ranks, per_rank = 2, placement.num_stages // placement.num_ranks
    small = build(num_ranks, 2 * num_ranks, Costs.uniform(num_ranks * per_rank))
    return bool(small.split_stages())


def fused(schedule: Schedule) -> Schedule:
    """Join B and W to BW on the stages where every W follows its B at once.

    >>> from zerobubble import build
    >>> sorted(fused(build("zb-h1", num_ranks=2, num_microbatches=3)).split_stages())
    [1]
    """
    pairs = [_follows_at_once(schedule, order) for order in schedule.orders]
    counts: Codes = np.zeros(schedule.num_stages, np.int64)
    for order, is_pair in zip(schedule.orders, pairs, strict=True):
        stages = schedule.fields(order)[1]
        counts += np.bincount(stages[is_pair], minlength=schedule.num_stages)
    whole = counts == schedule.num_microbatches
    if not whole.any():
        return schedule
    orders = []
    for order, is_pair in zip(schedule.orders, pairs, strict=True):
        _, stages, microbatches = schedule.fields(order)
        joined = is_pair & whole[stages]
        as_one = (Kind.BW * schedule.num_stages + stages) * schedule.num_microbatches + microbatches
        is_second = np.append(False, joined[:-1])
        orders.append(np.where(joined, as_one, order)[~is_second])
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(orders))


def _follows_at_once(schedule: Schedule, order: Codes) -> NDArray[np.bool_]:
    """Mark every B whose W comes next."""
    pair = schedule.num_stages * schedule.num_microbatches
    is_next: NDArray[np.bool_] = np.append(order[1:], -1) == order + (Kind.W - Kind.B) * pair
    is_next &= schedule.fields(order)[0] == Kind.B
    return is_next
