"""How is a memory limit met by offload and recompute, decided together with the schedule?

Ways to meet it are tried on a problem with few microbatches first, then the best of them on the
problem itself, and with more effort the best of these for longer. The search that moves nothing is
one of them, unless every stage is to be moved.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement
from zerobubble.search.effort import EFFORTS, Effort
from zerobubble.search.engine import SearchResult, search_all
from zerobubble.search.finds import PROVED
from zerobubble.search.known import Known, known_schedules
from zerobubble.search.problem import Objective
from zerobubble.search.relief import Relief, require_room
from zerobubble.search.relief.ways import Case, Way, alone
from zerobubble.simulate import Timeline

# With quick effort less is tried: decisions in so many steps, ways that are changed, rounds of
# changes, and ways that are tried on the problem itself.
_QUICK, _USUAL = (2, 1, 1, 2), (4, 4, 3, 4)
# What a single way gets of the effort of a search.
_SHARE_OF_EFFORT = 4


class Tried(NamedTuple):
    """A way that was tried on a case, and the objective that it led to."""

    value: float
    case: Case
    way: Way


def search_relieved(
    table: Mapping[Placement, Costs],
    num_microbatches: int,
    memory: ArrayLike,
    objective: Objective,
    effort: Effort,
    relief: Relief,
) -> SearchResult:
    """Search several placements, each with its costs; offload or recompute what is best so.

    Never worse than ``search_all`` with the same effort, where stages are free to stay.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limits.
    """
    begin = time.perf_counter()
    cases = _cases(table, num_microbatches, memory, objective, relief)
    contest = _Contest(cases, effort)
    contest.try_ways()
    contest.try_known()
    if relief.is_chosen:
        contest.try_plain()
    contest.try_alone()
    return contest.result(begin)


def _cases(
    table: Mapping[Placement, Costs],
    num_microbatches: int,
    memory: ArrayLike,
    objective: Objective,
    relief: Relief,
) -> list[Case]:
    """List the placements and costs within whose limits a schedule exists, the best bound first."""
    cases: list[Case] = []
    errors: list[UsageError] = []
    for place, costs in table.items():
        for variant in relief.variants(costs):
            try:
                limits = require_room(variant, place, memory, relief)
                asked = (num_microbatches, limits, objective, relief, variant is not costs)
                case = Case(variant, place, *asked)
                cases.append(replace(case, bound=case.bound_within(np.inf).value))
            except UsageError as error:
                named = f"placement {place}: {error}" if len(table) > 1 else str(error)
                errors.append(UsageError(named))
    if not cases:
        raise errors[-1]
    return sorted(cases, key=lambda case: case.bound)


class _Contest:
    """The best schedule of any case so far."""

    def __init__(self, cases: Sequence[Case], effort: Effort) -> None:
        self.cases = cases
        self.effort = effort
        self.best: tuple[float, Case, Timeline] | None = None
        self.num_tried = 0
        is_quick = effort.climbed == 0
        self._steps, self._changed, self._rounds, self._real = _QUICK if is_quick else _USUAL
        self._quick = EFFORTS["quick"]

    @property
    def value(self) -> float:
        """The smallest objective so far."""
        return np.inf if self.best is None else self.best[0]

    def is_worth(self, bound: float) -> bool:
        """Say whether anything can be better that is not below a bound."""
        return bound < self.value * (1 - PROVED)

    def keep(self, case: Case, timeline: Timeline | None) -> float:
        """Take note of a schedule, and keep it if it is the best; give its objective."""
        self.num_tried += 1
        value = np.inf if timeline is None else case.value_of(timeline)
        if timeline is not None and value < self.value * (1 - 1e-12):
            self.best = value, case, timeline
        return value

    def try_ways(self) -> None:
        """Try ways on few microbatches, change the best of them, and try those on the problem."""
        tried = [
            self._score(case, Way(decision))
            for case in self.cases
            for decision in case.decisions(self._steps)
        ]
        chosen = _best(tried, self._changed)
        changed = [self._change(each) for each in chosen]
        for each in _best([*changed, *chosen], self._real):
            if self.is_worth(each.case.bound):
                self.keep(each.case, each.way.try_on(each.case, self._quick))
        if self.effort.climbed and self.best is not None:
            longer = self.effort.divided(_SHARE_OF_EFFORT)
            for each in _best(changed, 1):
                if self.is_worth(each.case.bound):
                    self.keep(each.case, each.way.try_on(each.case, longer))

    def _score(self, case: Case, way: Way) -> Tried:
        """Try a way on few microbatches."""
        short = case.shorter()
        timeline = way.try_on(short, self._quick)
        self.num_tried += 1
        return Tried(np.inf if timeline is None else short.value_of(timeline), case, way)

    def _change(self, tried: Tried) -> Tried:
        """Climb over ways."""
        known = {tried.way.knobs: tried}
        for _ in range(self._rounds):
            for way in tried.way.neighbours():
                if way.knobs not in known:
                    known[way.knobs] = self._score(tried.case, way)
            best = min(known.values(), key=lambda each: each.value)
            if best is tried:
                break
            tried = best
        return tried

    def try_known(self) -> None:
        """Try registered schedules with their own copies and others, those first that are best."""
        scored = []
        for case in filter(lambda case: self.is_worth(case.bound), self.cases):
            for build in known_schedules(case.placement, may_move=True).values():
                timeline = _built(build, case.shorter())
                if timeline is not None:
                    scored.append((case.value_of(timeline), case, build))
        for _, case, build in sorted(scored, key=lambda each: each[0])[: self._real]:
            if self.is_worth(case.bound):
                self.keep(case, _built(build, case))

    def try_plain(self) -> None:
        """Search as if nothing could be moved, unless that cannot be better."""
        for is_light in (False, True):
            cases = [case for case in self.cases if case.is_light == is_light]
            if not any(self.is_worth(case.plain_bound()) for case in cases):
                continue
            first = cases[0]
            table = {case.placement: case.costs for case in cases}
            found = search_all(
                table, first.num_microbatches, first.limits, first.objective, self.effort
            )
            self.num_tried += found.num_tried
            case = next(each for each in cases if each.placement == found.schedule.placement)
            self.keep(case, found.timeline)

    def try_alone(self) -> None:
        """Run every microbatch alone if nothing else fits."""
        if self.best is None:
            for case in self.cases:
                self.keep(case, alone(case))

    def result(self, begin: float) -> SearchResult:
        """Give the best schedule with the bound for its placement."""
        assert self.best is not None, "every microbatch alone fits"
        value, its, timeline = self.best
        same = [case for case in self.cases if case.placement == its.placement]
        bounds = [case.bound_within(value) for case in same]
        return SearchResult(
            timeline.schedule,
            timeline,
            its.objective,
            min(bounds, key=lambda bound: bound.value),
            time.perf_counter() - begin,
            self.num_tried,
            its.is_light,
        )


def _best(tried: Sequence[Tried], number: int) -> list[Tried]:
    """Give the best few that led to a schedule, one for each value."""
    of_value = {each.value: each for each in reversed(tried) if each.value < np.inf}
    return [of_value[value] for value in sorted(of_value)[:number]]


def _built(build: Known, case: Case) -> Timeline | None:
    """Build a registered schedule, with copies within the limits; None where that cannot be."""
    try:
        return case.admitted(build(case.placement.num_ranks, case.num_microbatches, case.costs))
    except ScheduleError:  # it is not defined for these numbers
        return None
