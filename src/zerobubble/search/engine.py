"""How is the best schedule found under a memory limit, and when is it good enough to stop?"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement, Schedule, looped, placement_named, wave
from zerobubble.schedules import REGISTRY
from zerobubble.search.auto import AUTO
from zerobubble.search.bounds import Bound, lower_bound
from zerobubble.search.climb import POOL, cross, mutate
from zerobubble.search.listing import Preferences, list_schedule
from zerobubble.search.portfolio import Family, budgeted, families, variants
from zerobubble.search.problem import Objective, Problem
from zerobubble.search.template import Template, passes, seeds, to_preferences, with_warm_up
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import violations

# How many templates are tried by climbing, and from how many random seeds.
EFFORTS = {"quick": (0, 0), "default": (1500, 1), "thorough": (4000, 3)}
_NUM_REFINED = 6
_PROVED = 1e-7


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best schedule found, with the proof of how close it is to the best possible.

    Attributes:
        schedule: split into B and W, or a named one.
        timeline: its simulation.
        objective: what was minimised, ``span`` or ``makespan``.
        certificate: the largest lower bound for the same placement, costs and limits.
        seconds: how long the search took.
        num_tried: how many schedules were built.
    """

    schedule: Schedule
    timeline: Timeline
    objective: Objective
    certificate: Bound
    seconds: float
    num_tried: int

    @property
    def value(self) -> float:
        """The objective of the schedule."""
        return _value(self.timeline, self.objective)

    @property
    def bound(self) -> float:
        """A time that no schedule with this placement can beat."""
        return self.certificate.value

    @property
    def gap(self) -> float:
        """How far above the bound the schedule may be, as a share of the bound."""
        return max(0.0, self.value / self.bound - 1) if self.bound > 0 else 0.0

    @property
    def is_proved_optimal(self) -> bool:
        """Whether no schedule with this placement can be better."""
        return self.gap <= _PROVED

    @property
    def binding(self) -> str:
        """What forbids a shorter time, in words."""
        return self.certificate.reason


def search_all(
    costs: Costs,
    places: Iterable[Placement],
    num_microbatches: int,
    memory: ArrayLike,
    objective: Objective,
    effort: str,
) -> SearchResult:
    """Search every placement, and keep the best; arguments as for ``search``."""
    if effort not in EFFORTS:
        raise UsageError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r}")
    begin = time.perf_counter()
    results = [
        _Search(Problem(costs, place, num_microbatches, memory, objective)).run(effort)
        for place in places
    ]
    best = min(results, key=lambda found: found.value)
    return SearchResult(
        best.schedule,
        best.timeline,
        objective,
        best.certificate,
        time.perf_counter() - begin,
        sum(found.num_tried for found in results),
    )


def placements(asked: Placement | str | None, num_ranks: int, num_stages: int) -> list[Placement]:
    """List the placements that are asked for, or all regular ones of so many stages.

    >>> [str(place) for place in placements(None, num_ranks=4, num_stages=8)]
    ['v', 'looped:2']
    """
    if asked is not None:
        place = placement_named(asked, num_ranks) if isinstance(asked, str) else asked
        return [place]
    per_rank, rest = divmod(num_stages, num_ranks)
    if rest or per_rank < 1:
        raise UsageError(
            f"{num_stages} stages cannot be shared evenly by {num_ranks} ranks: give a placement"
        )
    shapes = [wave(num_ranks, per_rank), looped(num_ranks, per_rank)]
    return list({place.stage_to_rank: place for place in shapes}.values())


class _Search:
    """The search for one placement: the best so far, and when it is proved."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.certificate = lower_bound(
            problem.costs,
            problem.placement,
            problem.num_microbatches,
            problem.limits,
            problem.objective,
        )
        self.best: tuple[float, Timeline] | None = None
        self.num_tried = 0

    def run(self, effort: str) -> SearchResult:
        begin = time.perf_counter()
        for stage in self._stages(effort):
            for _ in stage:
                if self._is_proved():
                    break
            if self._is_proved():
                break
        assert self.best is not None
        _, timeline = self.best
        return SearchResult(
            timeline.schedule,
            timeline,
            self.problem.objective,
            self.certificate,
            time.perf_counter() - begin,
            self.num_tried,
        )

    def _stages(self, effort: str) -> Iterator[Iterator[object]]:
        """Yield the parts of the search, cheapest first; each goes on as far as it is asked."""
        yield self._try_registered()
        yield self._try_portfolio()
        num_climbs, num_seeds = EFFORTS[effort]
        num_passes = int(passes(self.problem.placement)[-1]) + 1
        pool: list[tuple[float, int, Template]] = []
        yield self._try_templates(with_warm_up(seeds(num_passes)), pool)
        for seed in range(num_seeds):
            yield self._climb(list(pool), num_climbs // num_seeds, seed, num_passes)

    def _is_proved(self) -> bool:
        return self.best is not None and self.best[0] <= self.certificate.value * (1 + _PROVED)

    def _keep(self, schedule: Schedule) -> float:
        """Simulate a candidate, and keep it if it is the best so far."""
        timeline = simulate(schedule, self.problem.costs)
        value = _value(timeline, self.problem.objective)
        self.num_tried += 1
        if self.best is None or value < self.best[0] * (1 - 1e-12):
            self.best = value, timeline
        return value

    def _try(self, preferences: Preferences) -> float:
        return self._keep(list_schedule(self.problem, preferences))

    def _try_registered(self) -> Iterator[float]:
        problem = self.problem
        num_ranks, per_rank = problem.placement.num_ranks, len(problem.placement.stages_of(0))
        for recipe in (found for name, found in REGISTRY.items() if name != AUTO):
            for parameters in ({}, {"v": per_rank}, {"waves": max(1, per_rank // 2)}):
                if not parameters.keys() <= recipe.parameters.keys():
                    continue
                if recipe.place(num_ranks, **parameters) != problem.placement:
                    continue
                with suppress(ScheduleError):  # it is not defined for these numbers
                    schedule = recipe.build(
                        num_ranks, problem.num_microbatches, problem.costs, **parameters
                    )
                    if not violations(schedule, problem.costs, problem.limits):
                        yield self._keep(schedule)
                break

    def _try_portfolio(self) -> Iterator[float]:
        scored: list[tuple[float, int, Family]] = []
        for family in families(self.problem):
            values: list[float] = []
            for preferences in variants(family):
                values.append(self._try(preferences))
                yield values[-1]
            scored.append((min(values), len(scored), family))
        for _, _, family in sorted(scored)[:_NUM_REFINED]:
            assert self.best is not None
            for preferences in budgeted(self.problem, family, self.certificate.value, self.best[0]):
                yield self._try(preferences)

    def _try_templates(
        self, templates: Iterator[Template], pool: list[tuple[float, int, Template]]
    ) -> Iterator[float]:
        for template in templates:
            pool.append((self._try_template(template), len(pool), template))
            yield pool[-1][0]
        pool.sort(key=lambda entry: entry[:2])

    def _try_template(self, template: Template) -> float:
        best = None if self.best is None else self.best[0]
        return self._try(to_preferences(template, self.problem, best))

    def _climb(
        self,
        pool: list[tuple[float, int, Template]],
        num_climbs: int,
        seed: int,
        num_passes: int,
    ) -> Iterator[float]:
        generator = np.random.default_rng(seed)
        pool = sorted(pool, key=lambda entry: entry[:2])[:POOL]
        for number in range(num_climbs):
            index = min(len(pool) - 1, int(generator.geometric(0.35)) - 1)
            template = mutate(pool[index][2], generator, num_passes)
            if generator.random() < 0.15:
                template = cross(template, pool[int(generator.integers(len(pool)))][2], generator)
            value = self._try_template(template)
            if value <= pool[index][0] * (1 + 1e-12):
                pool[index] = (value, number, template)
                pool.sort(key=lambda entry: entry[:2])
            yield value


def _value(timeline: Timeline, objective: Objective) -> float:
    return timeline.span if objective == "span" else timeline.makespan
