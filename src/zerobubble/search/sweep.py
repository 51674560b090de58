"""How does the bubble fall as memory grows, and how close do the named schedules come?

There is one search for each placement and memory limit. A schedule that one of them found, or a
named one, serves every limit that it fits into: where it meets the lower bound, none is searched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from zerobubble.costs import TOLERANCE, Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement
from zerobubble.schedules import REGISTRY, Recipe
from zerobubble.search.auto import AUTO
from zerobubble.search.effort import effort_named
from zerobubble.search.placements import CostsOrFunction, costs_of_placements
from zerobubble.simulate import Timeline, simulate

if TYPE_CHECKING:
    from zerobubble.search.problem import Objective

# Steps of the memory grid for p microbatches.
_STEPS = 8

CostsOfPlacements = Mapping[Placement, Costs]


@dataclass(frozen=True, eq=False)
class Point:
    """The best schedule known for one placement within one memory limit.

    Attributes:
        placement: which rank holds which stage.
        memory: limit of every rank, in the unit of ``costs.activation``.
        timeline: the schedule's simulation; its ``peak_memory`` may be less than the limit.
        objective: whether ``value`` and ``bound`` are a span or a makespan.
        bound: a time that no schedule with this placement can beat within the limit.
    """

    placement: Placement
    memory: float
    timeline: Timeline
    objective: "Objective"
    bound: float

    @property
    def value(self) -> float:
        """The span or makespan."""
        return time_of(self.timeline, self.objective)

    @property
    def bubble(self) -> float:
        """Share of that time in which even the busiest rank waits."""
        return bubble_of(self.timeline, self.objective)

    @property
    def bound_bubble(self) -> float:
        """A bubble that no schedule with this placement can beat within the limit."""
        load = max(self.timeline.work_per_rank)
        return max(0.0, 1 - load / self.bound) if self.bound > 0 else 0.0

    @property
    def gap(self) -> float:
        """How far above the bound the schedule may be, as a share of the bound."""
        return max(0.0, self.value / self.bound - 1) if self.bound > 0 else 0.0

    @property
    def is_proved_optimal(self) -> bool:
        """Whether no schedule with this placement can be better within the limit."""
        return _is_no_more(self.value, self.bound)


@dataclass(frozen=True, eq=False)
class Frontier:
    """The best schedules for every placement and memory limit, and the named ones beside them.

    Attributes:
        objective: what was minimised, ``span`` or ``makespan``.
        points: placement after placement, each with growing limits and times that do not grow.
        named: timelines of the named schedules for the same costs.
        left_out: why other named schedules are not there.
    """

    objective: "Objective"
    points: tuple[Point, ...]
    named: tuple[Timeline, ...]
    left_out: dict[str, str]

    @property
    def placements(self) -> list[Placement]:
        """The placements that were searched."""
        return list(dict.fromkeys(point.placement for point in self.points))

    @property
    def limits(self) -> list[float]:
        """The memory limits, growing."""
        return sorted({point.memory for point in self.points})

    def at(self, memory: float) -> dict[Placement, Point]:
        """Give the point of every placement that can run within a limit of the grid."""
        return {point.placement: point for point in self.points if point.memory == memory}

    def is_best(self, point: Point) -> bool:
        """Say whether no placement is faster within the same limit."""
        return all(
            _is_no_more(point.value, other.value) for other in self.at(point.memory).values()
        )

    def pareto(self) -> list[Point]:
        """List the points than which none is faster in as little memory, by growing peak memory."""
        kept: list[Point] = []
        for point in sorted(self.points, key=lambda each: (each.timeline.peak_memory, each.value)):
            if not kept or not _is_no_more(kept[-1].value, point.value):
                kept.append(point)
        return kept


def frontier(
    costs: CostsOrFunction,
    num_ranks: int,
    num_microbatches: int,
    memory: tuple[float, float] | None = None,
    objective: "Objective" = "span",
    effort: str = "quick",
) -> Frontier:
    """Find the best schedule for every placement and memory limit.

    The limits go from what one microbatch needs to twice the memory of 1F1B, or to all
    microbatches if that is less, in steps of an eighth of the memory of 1F1B, at least of one
    microbatch.

    Args:
        costs: of every stage: then all regular placements of so many stages are tried; or a
            function that gives the costs for a placement, such as ``Costs.of_ranks``: then those
            of ``PLACEMENTS`` are.
        num_ranks: p.
        num_microbatches: m.
        memory: smallest and largest limit, in the unit of ``costs.activation``.
        objective: ``span`` where steps follow each other without a barrier, else ``makespan``.
        effort: ``quick``, ``default`` or ``thorough``, as for ``search``.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limits.

    >>> found = frontier(Costs.of_ranks, num_ranks=2, num_microbatches=4, memory=(2, 4))
    >>> for placement, point in found.at(2).items():
    ...     print(placement, f"{point.bubble:.1%}", point.is_proved_optimal)
    linear 7.7% True
    v 0.0% True
    looped:2 4.0% True
    wave:4 0.0% True
    """
    for what, count in {"ranks": num_ranks, "microbatches": num_microbatches}.items():
        if count < 1:
            raise UsageError(f"{what} must be at least 1, not {count}")
    effort_named(effort)
    table = costs_of_placements(costs, num_ranks)
    limits = _limits(table, num_ranks, num_microbatches, memory)
    named, left_out = _named(table, num_ranks, num_microbatches)
    points: list[Point] = []
    for place, its in table.items():
        known = [timeline for timeline in named if timeline.schedule.placement == place]
        points += _sweep(its, place, num_microbatches, limits, objective, effort, known)
    return Frontier(objective, tuple(points), tuple(named), left_out)


def time_of(timeline: Timeline, objective: "Objective") -> float:
    """Give the span or the makespan."""
    return timeline.span if objective == "span" else timeline.makespan


def bubble_of(timeline: Timeline, objective: "Objective") -> float:
    """Give the bubble of the span or of the makespan."""
    return timeline.bubble if objective == "span" else timeline.bubble_makespan


def _limits(
    table: CostsOfPlacements,
    num_ranks: int,
    num_microbatches: int,
    memory: tuple[float, float] | None,
) -> list[float]:
    """List the memory limits to search, growing: round numbers of microbatches among them."""
    needed = [_least_memory(costs, place) for place, costs in table.items()]
    microbatch = max(needed)
    last = min(2 * num_ranks, num_microbatches)
    counts = {*range(1, last + 1, max(1, num_ranks // _STEPS)), num_ranks / 2, num_ranks, last}
    limits = {*needed, *(microbatch * count for count in counts if 1 <= count <= last)}
    if memory is not None:
        low, high = _range_of(memory, least=min(needed))
        high = min(high, microbatch * num_microbatches)
        within = {limit for limit in limits if low <= limit <= high}
        limits = {max(low, min(needed)), max(high, min(needed)), *within}
    # Sums of shares differ from round numbers in the last digit.
    pairs = pairwise([*sorted(limits), np.inf])
    return [limit for limit, larger in pairs if not _is_no_more(larger, limit)]


def _range_of(memory: tuple[float, float], least: float) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in memory)
    except (TypeError, ValueError):
        raise UsageError(f"memory must be a smallest and a largest limit, not {memory!r}") from None
    if not 0 <= low <= high:
        raise UsageError(
            f"memory from {low:g} to {high:g} is no range: give a smallest and largest"
        )
    if high < least * (1 - TOLERANCE):
        raise UsageError(
            f"no schedule fits into memory {high:g}: one microbatch on all stages of a rank needs "
            f"{least:g}"
        )
    return low, high


def _least_memory(costs: Costs, placement: Placement) -> float:
    from zerobubble.search.limits import smallest_memory

    return float(smallest_memory(costs, placement).max())


def _named(
    table: CostsOfPlacements, num_ranks: int, num_microbatches: int
) -> tuple[list[Timeline], dict[str, str]]:
    """Build every named schedule that the costs are for, and say why others are left out."""
    named, left_out = [], {}
    for recipe in (found for name, found in REGISTRY.items() if name != AUTO):
        try:
            named.append(_timeline_of(recipe, table, num_ranks, num_microbatches))
        except (ScheduleError, UsageError) as error:
            left_out[recipe.name] = str(error)
    return named, left_out


def _timeline_of(
    recipe: Recipe, table: CostsOfPlacements, num_ranks: int, num_microbatches: int
) -> Timeline:
    """Build a schedule with its own number of stages a rank, else with that of the costs."""
    per_rank = max(place.num_stages for place in table) // num_ranks
    choices: list[dict[str, int]] = [{}]
    for name, number in {"v": per_rank, "waves": per_rank // 2}.items():
        if name in recipe.parameters and number > 0:
            choices.append({name: number})
    for parameters in choices:
        costs = table.get(recipe.place(num_ranks, **parameters))
        if costs is not None:
            built = recipe.build(num_ranks, num_microbatches, costs, **parameters)
            if built.has_copies:
                raise ScheduleError("it offloads activations, and what is searched does not")
            return simulate(built, costs)
    raise ScheduleError(f"its placement {recipe.place(num_ranks)} is not searched")


def _sweep(
    costs: Costs,
    placement: Placement,
    num_microbatches: int,
    limits: Sequence[float],
    objective: "Objective",
    effort: str,
    known: Sequence[Timeline],
) -> list[Point]:
    """Find the best schedule for every limit, of growing ones, that the placement can run in."""
    from zerobubble.search import lower_bound, search

    problem = costs, placement, num_microbatches
    needed = _least_memory(costs, placement)
    bounds = {
        limit: lower_bound(*problem, limit, objective).value
        for limit in limits
        if _is_no_more(needed, limit)
    }
    found = list(known)
    for limit, bound in bounds.items():
        best = _best_within(limit, found, objective)
        if best is None or not _is_no_more(time_of(best, objective), bound):
            ranks = placement.num_ranks
            result = search(costs, ranks, num_microbatches, limit, placement, objective, effort)
            found.append(result.timeline)
    points = []
    for limit, bound in bounds.items():
        best = _best_within(limit, found, objective)
        assert best is not None, "a search has found one, or there was one before"
        points.append(Point(placement, limit, best, objective, bound))
    return points


def _best_within(
    limit: float, timelines: Sequence[Timeline], objective: "Objective"
) -> Timeline | None:
    """Find the first of the fastest schedules that fit into a limit."""
    fitting = [each for each in timelines if _is_no_more(each.peak_memory, limit)]
    return min(fitting, key=lambda each: time_of(each, objective), default=None)


def _is_no_more(value: float, other: float) -> bool:
    return value <= other * (1 + TOLERANCE)
