"""How is the best schedule found under a memory limit, and when is it good enough to stop?

Every placement asked for is searched in the same way. Registered schedules that fit come first,
then rules of preference: tuned on small copies of the problem, then on the problem itself. Orders
found by the best rules are justified, annealed and, for many microbatches, spliced. Whatever is
found is compared with a lower bound, and the search ends when it is reached.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement, Schedule, looped, placement_named, wave
from zerobubble.schedules import REGISTRY
from zerobubble.search.annealing import annealed
from zerobubble.search.arrangement import Arrangement, arrange_within_limits, split_codes
from zerobubble.search.auto import AUTO
from zerobubble.search.bounds import Bound, lower_bound
from zerobubble.search.climb import Pool, climb
from zerobubble.search.justify import justified
from zerobubble.search.listing import list_ops
from zerobubble.search.portfolio import FixedRule, Rule, budgeted, fixed_rules
from zerobubble.search.problem import Objective, Problem
from zerobubble.search.scaling import ladder
from zerobubble.search.template import Template, num_passes, seeds, with_warm_up
from zerobubble.simulate import Timeline

_PROVED = 1e-7


@dataclass(frozen=True)
class Effort:
    """How much is tried; sums of ops placed, so that a larger problem gets fewer tries.

    Attributes:
        seeded: ops placed by trying the rules to start from, at each size.
        climbed: ops placed by climbing over templates at each size.
        num_seeds: how many climbs share them at the smallest size.
        justified: ops placed by justifying what climbing finds, with three or more stages a rank.
        annealed: ops placed by annealing, for problems that are small enough for it.
    """

    seeded: int
    climbed: int
    num_seeds: int
    justified: int
    annealed: int


EFFORTS = {
    "quick": Effort(100_000, 0, 0, 0, 0),
    "default": Effort(1_000_000, 6_000_000, 2, 40_000_000, 600_000_000),
    "thorough": Effort(4_000_000, 20_000_000, 3, 200_000_000, 3_000_000_000),
}
# Annealing changes one op at a time, which leads nowhere in larger problems.
_LARGEST_ANNEALED = 4_000
# Registered schedules of larger problems are built for fewer microbatches, and spliced.
_LARGEST_BUILT = 200_000
_LEAST_TRIES = 3
_CHOSEN_RULES = 6
_FEW_ROUNDS, _FEW_PATIENCES = 3, (0.0, 1.0)
_MANY_ROUNDS, _MANY_PATIENCES = 16, (0.0, 0.5, 1.0)
_TEMPERATURES = (0.3, 0.1, 0.1)


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
        return self.timeline.span if self.objective == "span" else self.timeline.makespan

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


def search_all(problems: Sequence[Problem], effort: str) -> SearchResult:
    """Search several placements of a model, and give the best result of any.

    The cheap part comes first for all of them; a placement whose bound is not below what has been
    found for another is not looked at further.

    Raises:
        UsageError: the effort is unknown.
    """
    if effort not in EFFORTS:
        raise UsageError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r}")
    begin = time.perf_counter()
    searches = [_Search(problem, EFFORTS[effort]) for problem in problems]
    best = np.inf
    for part in (_Search.begin, _Search.go_on):
        for search in sorted(searches, key=lambda search: search.real.bound):
            if search.real.bound < best * (1 - _PROVED):
                part(search)
            best = min(best, search.real.value)
    found = min((search.real for search in searches), key=lambda size: size.value)
    assert found.best is not None, "list scheduling always finds a schedule"
    timeline = found.best.timeline()
    return SearchResult(
        timeline.schedule,
        timeline,
        found.problem.objective,
        found.certificate,
        time.perf_counter() - begin,
        sum(search.num_tried for search in searches),
    )


class _Search:
    """The search for one placement: the problem, and smaller copies of it to find rules on."""

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.effort = effort
        self.sizes = [_Size(copy) for copy in ladder(problem)]
        self.real = self.sizes[-1]

    @property
    def num_tried(self) -> int:
        """How many orders were tried, at all sizes."""
        return sum(size.num_tried for size in self.sizes)

    def begin(self) -> None:
        """Try what is known and what is quick to try."""
        rules: list[Rule] = []
        for size in self.sizes:
            if size.problem.placement == self.real.problem.placement:
                size.try_registered()
            if not size.is_done:
                size.try_rules([*rules, *start_rules(size.problem)], self.effort.seeded)
            rules = size.best_rules() or rules

    def go_on(self) -> None:
        """Spend the effort."""
        templates: list[Template] = []
        for number, size in enumerate(self.sizes):
            if not self.effort.climbed or size.is_done:
                continue
            size.tune(templates, self.effort, self.effort.num_seeds if number == 0 else 1)
            if size.problem.placement == self.real.problem.placement:
                size.polish(self.effort)
            templates = [template for _, _, template in size.best_templates()] or templates


def start_rules(problem: Problem) -> Iterator[Rule]:
    """Yield the rules that are worth a try on any problem."""
    yield from fixed_rules(problem)
    yield from with_warm_up(seeds(num_passes(problem.placement)))


class _Size:
    """The search on one copy of the problem, or on the problem itself."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.certificate = lower_bound(
            problem.costs,
            problem.placement,
            problem.num_microbatches,
            problem.limits,
            problem.objective,
        )
        self.bound = self.certificate.value
        self.best: Arrangement | None = None
        self.scored: list[tuple[float, int, Rule]] = []
        self.num_tried = 0

    @property
    def value(self) -> float:
        """The smallest objective so far."""
        return self.best.value if self.best is not None else np.inf

    @property
    def is_done(self) -> bool:
        """Whether nothing can be better than the best so far."""
        return self.value <= self.bound * (1 + _PROVED)

    def keep(self, arrangement: Arrangement) -> float:
        """Take note of an order, and keep it if it is the best so far."""
        self.num_tried += 1
        if arrangement.value < self.value * (1 - 1e-12):
            self.best = arrangement
        return arrangement.value

    def try_registered(self) -> None:
        """Try every registered schedule that has this placement and fits."""
        for schedule in _registered(self.problem):
            found = arrange_within_limits(self.problem, split_codes(schedule), schedule.name)
            if found is not None:
                self.keep(found)

    def try_rule(self, rule: Rule) -> float:
        """Try a rule, and remember how good it was."""
        value = self.keep(self._list_ops(rule))
        self.scored.append((value, len(self.scored), rule))
        return value

    def _list_ops(self, rule: Rule) -> Arrangement:
        best = None if self.best is None else self.value
        return list_ops(self.problem, rule.preferences(self.problem, self.bound, best))

    def try_rules(self, rules: Iterable[Rule], num_ops: int) -> None:
        """Try rules until so many ops have been placed, then the best ones with budgets."""
        num_tries = max(_LEAST_TRIES, num_ops // self.problem.num_ops)
        for rule in islice(rules, num_tries):
            if self.is_done:
                return
            self.try_rule(rule)
        fixed = [rule for rule in self.best_rules() if isinstance(rule, FixedRule)]
        variants = chain.from_iterable(budgeted(rule) for rule in fixed)
        for rule in islice(variants, num_tries // 2):
            if self.is_done:
                return
            self.try_rule(rule)

    def best_rules(self) -> list[Rule]:
        """Give the best rules tried, best first, one for each value."""
        of_value = {value: rule for value, _, rule in sorted(self.scored, key=_rank, reverse=True)}
        return [of_value[value] for value in sorted(of_value)[:_CHOSEN_RULES]]

    def best_templates(self) -> list[tuple[float, int, Template]]:
        """Give the best templates tried, each with its value and number; one for each value."""
        templates = [(v, n, rule) for v, n, rule in self.scored if isinstance(rule, Template)]
        of_value = {entry[0]: entry for entry in sorted(templates, key=_rank, reverse=True)}
        return [of_value[value] for value in sorted(of_value)[:_CHOSEN_RULES]]

    def tune(self, templates: Sequence[Template], effort: Effort, num_seeds: int) -> None:
        """Climb from the given templates, and the best tried here before."""
        for template in templates:
            self.try_rule(template)
        start = self.best_templates()
        num_tries = effort.climbed // self.problem.num_ops // num_seeds
        for seed in range(num_seeds):
            climbing = climb(
                Pool(start), self.try_rule, num_tries, seed, num_passes(self.problem.placement)
            )
            for _ in climbing:
                if self.is_done:
                    return

    def polish(self, effort: Effort) -> None:
        """Improve the orders themselves."""
        if self.is_done:
            return
        for _, _, template in self.best_templates():
            self._justify(self._list_ops(template), _MANY_ROUNDS, _MANY_PATIENCES)
        if self.problem.placement.num_stages > 2 * self.problem.placement.num_ranks:
            self._climb_justified(effort)
        if self.problem.num_ops <= _LARGEST_ANNEALED:
            self._anneal(effort.annealed // self.problem.num_ops)

    def _justify(
        self, arrangement: Arrangement, num_rounds: int, patiences: Sequence[float]
    ) -> float:
        """Push an order back and forth; give the best value on the way."""
        value = self.keep(arrangement)
        for better in justified(arrangement, num_rounds, patiences, self.bound):
            value = min(value, self.keep(better))
        return value

    def _climb_justified(self, effort: Effort) -> None:
        """Climb over templates by what justification makes of them."""
        pool = Pool(
            [
                (self._value_justified(template, np.inf), number, template)
                for _, number, template in self.best_templates()
            ]
        )
        load = float(self.problem.loads.max())

        def value_of(template: Template) -> float:
            worst = pool.entries[-1][0]
            return self._value_justified(template, load + 2.5 * (worst - load))

        num_passes_each = 1 + 4 * _FEW_ROUNDS
        num_tries = effort.justified // self.problem.num_ops // num_passes_each
        for _ in climb(pool, value_of, num_tries, 3, num_passes(self.problem.placement)):
            if self.is_done:
                return

    def _value_justified(self, template: Template, worth: float) -> float:
        """Give what a template leads to; it is justified if it is at least worth that."""
        found = self._list_ops(template)
        if found.value >= worth:
            return self.keep(found)
        return self._justify(found, _FEW_ROUNDS, _FEW_PATIENCES)

    def _anneal(self, num_moves: int) -> None:
        assert self.best is not None, "rules have been tried before"
        for turn, temperature in enumerate(_TEMPERATURES):
            if not self.is_done:
                self.keep(
                    annealed(
                        self.best, num_moves // len(_TEMPERATURES), turn, temperature, self.bound
                    )
                )


def _rank(entry: tuple[float, int, Rule]) -> tuple[float, int]:
    return entry[0], entry[1]


def _registered(problem: Problem) -> Iterator[Schedule]:
    """Build every registered schedule that has the placement of a problem."""
    num_ranks, per_rank = problem.placement.num_ranks, len(problem.placement.stages_of(0))
    for recipe in (found for name, found in REGISTRY.items() if name != AUTO):
        for parameters in ({}, {"v": per_rank}, {"waves": max(1, per_rank // 2)}):
            if not parameters.keys() <= recipe.parameters.keys():
                continue
            if recipe.place(num_ranks, **parameters) != problem.placement:
                continue
            with suppress(ScheduleError):  # it is not defined for these numbers
                yield recipe.build(num_ranks, problem.num_microbatches, problem.costs, **parameters)
            break
