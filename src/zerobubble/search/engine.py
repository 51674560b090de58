"""How is the best schedule found under a memory limit, and when is it good enough to stop?

Every placement asked for is searched in the same way. Registered schedules that fit come first,
then rules of preference: tuned on small copies of the problem, then on the problem itself. Orders
found by the best rules are justified, improved on their critical paths and, for many microbatches,
spliced. Whatever is found is compared with a lower bound, and the search ends when it is reached.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Kind, Placement, Schedule
from zerobubble.search.bounds import Bound
from zerobubble.search.effort import Effort
from zerobubble.search.finds import PROVED
from zerobubble.search.known import known_schedules
from zerobubble.search.limits import smallest_memory
from zerobubble.search.orders.arrangement import Arrangement, arrange_within_limits, split_codes
from zerobubble.search.problem import Objective, Problem
from zerobubble.search.rules.portfolio import Rule
from zerobubble.search.rules.starting import start_rules
from zerobubble.search.rules.template import Template
from zerobubble.search.scaling import ladder
from zerobubble.search.size import Size
from zerobubble.search.splice import splice
from zerobubble.simulate import Timeline

# Of a copy of the problem only the rhythm is taken over, not the order of every op.
_FEWER_MOVES = 4


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best schedule found, with the proof of how close it is to the best possible.

    Attributes:
        schedule: split into B and W, or a named one.
        timeline: its simulation.
        objective: what was minimised, ``span`` or ``makespan``.
        certificate: the largest lower bound for the same placement, costs and limits.
        seconds: how long the search took.
        num_tried: how many orders were compared; a tabu search counts once.
        is_light: whether the costs of the timeline are those of a run with light recompute.
    """

    schedule: Schedule
    timeline: Timeline
    objective: Objective
    certificate: Bound
    seconds: float
    num_tried: int
    is_light: bool = False

    @property
    def value(self) -> float:
        """The objective of the schedule."""
        return self.timeline.span if self.objective == "span" else self.timeline.makespan

    @property
    def offloaded_stages(self) -> list[int]:
        """The stages of which some microbatch is offloaded."""
        return np.flatnonzero(self.schedule.has(Kind.O).any(axis=1)).tolist()

    @property
    def recomputed_stages(self) -> list[int]:
        """The stages that are run again for some microbatch."""
        return np.flatnonzero(self.schedule.has(Kind.R).any(axis=1)).tolist()

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
        return self.gap <= PROVED

    @property
    def binding(self) -> str:
        """What forbids a shorter time, in words."""
        return self.certificate.reason


def search_all(
    table: Mapping[Placement, Costs],
    num_microbatches: int,
    memory: ArrayLike,
    objective: Objective,
    effort: Effort,
) -> SearchResult:
    """Search several placements, each with its costs, and give the best result of any.

    The cheap part comes first for all of them; a placement whose bound is not below what has been
    found for another is not looked at further. Those that cannot run within the memory are left
    out if another can.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limits.
    """
    tries, begin = effort.shared_by(len(table)), time.perf_counter()
    unit = _time_unit(table.values())
    searches, errors = [], {}
    for place, costs in table.items():
        try:
            problem = Problem(_in_units(costs, unit), place, num_microbatches, memory, objective)
            searches.append(_Search(problem, tries))
        except UsageError as error:
            errors[place] = error
    if not searches:
        raise _easiest_to_mend(errors, table)
    best = np.inf
    for part in (_Search.begin, _Search.go_on):
        for search in sorted(searches, key=lambda search: search.real.bound):
            if search.real.bound < best * (1 - PROVED):
                part(search)
            best = min(best, search.real.value)
    found = min((search.real for search in searches), key=lambda size: size.value)
    assert found.best is not None, "list scheduling always finds a schedule"
    assert found.value >= found.bound * (1 - PROVED), "no schedule is shorter than a lower bound"
    scaled, costs = found.best.timeline(), table[found.problem.placement]
    start, end = ([unit * column for column in columns] for columns in (scaled.start, scaled.end))
    timeline = Timeline(scaled.schedule, costs, tuple(start), tuple(end))
    return SearchResult(
        timeline.schedule,
        timeline,
        objective,
        replace(found.certificate, value=unit * found.bound),
        time.perf_counter() - begin,
        sum(search.num_tried for search in searches),
    )


def _time_unit(table: Iterable[Costs]) -> float:
    """Give a power of two near the longest time, by which times are divided without rounding.

    What counts as equal in a search is absolute; the unit of the costs must not matter.
    """
    longest = max(max(costs.durations()[: Kind.O].max(), costs.transfer.max()) for costs in table)
    return float(2.0 ** np.round(np.log2(longest))) if longest > 0 else 1.0


def _in_units(costs: Costs, unit: float) -> Costs:
    times = ("forward", "backward_input", "backward_weight", "transfer")
    return replace(costs, **{name: getattr(costs, name) / unit for name in times})


def _easiest_to_mend(
    errors: Mapping[Placement, UsageError], table: Mapping[Placement, Costs]
) -> UsageError:
    """Choose the error of the placement that needs least memory, and name it if several failed."""
    if len(errors) == 1:
        return next(iter(errors.values()))
    place = min(errors, key=lambda place: smallest_memory(table[place], place).max())
    return UsageError(f"placement {place}: {errors[place]}")


class _Search:
    """The search for one placement: the problem, and smaller copies of it to find rules on.

    With quick effort named schedules are tried on copies too, and on the problem itself only those
    that come close to the best there.
    """

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.effort = effort
        self.sizes = [Size(copy) for copy in ladder(problem)]
        self.real = self.sizes[-1]

    @property
    def num_tried(self) -> int:
        """How many orders were tried, at all sizes."""
        return sum(size.num_tried for size in self.sizes)

    def begin(self) -> None:
        """Try what is known and what is quick to try."""
        rules: list[Rule] = []
        known = list(known_schedules(self.real.problem.placement).values())
        for size in self.sizes:
            if self._splice_into(size):
                continue
            is_copy = size.problem.placement != self.real.problem.placement
            start = chain(rules, start_rules(size.problem))
            if is_copy:  # a rule is wanted even if a named schedule is as good
                size.try_rules(start, self.effort.seeded)
            if not (is_copy and self.effort.climbed):
                scored = size.try_known(known, has_more_room=is_copy)
                known = [build for value, build in scored if size.is_close(value)]
            if not is_copy:
                size.try_rules(start, self.effort.seeded)
            size.justify_rules()
            rules = size.best_rules() or rules

    def go_on(self) -> None:
        """Spend the effort."""
        templates: list[Template] = []
        copied: Arrangement | None = None
        num_climbs = self.effort.num_climbs
        for number, size in enumerate(self.sizes):
            if num_climbs and not size.is_done and not self._splice_into(size):
                size.tune(templates, self.effort, num_climbs)
                # Justification does more in larger problems, and is worth more time there.
                justified = self.effort.justified * 2**number
                size.tune_justified(justified)
                moves = self.effort.moves // (1 if size is self.real else _FEWER_MOVES)
                size.polish(self.effort, justified, moves, copied)
                templates = [each.rule for each in size.best_of(Template)] or templates
                num_climbs = max(1, num_climbs // 2)
            copied = size.best

    def _splice_into(self, size: "Size") -> bool:
        """Extend what was found for fewer microbatches; say whether that lost nothing."""
        before = next((s for s in self.sizes if s.is_shorter_than(size)), None)
        if before is None or before.best is None:
            return False
        schedule = splice(before.best.timeline().schedule, size.problem.num_microbatches)
        if schedule is None:
            return False
        found = arrange_within_limits(size.problem, split_codes(schedule), schedule.name)
        if found is None:
            return False
        size.keep(found)
        idle = before.value - float(before.problem.loads.max())
        return found.value - float(size.problem.loads.max()) <= idle + PROVED * before.value
