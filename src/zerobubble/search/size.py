"""What is tried on one copy of a problem, or on the problem itself, and what was the best?"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from zerobubble.errors import ScheduleError
from zerobubble.ir import v_shape
from zerobubble.schedules.v_rounds import v_rounds
from zerobubble.search.arrangement import Arrangement, arrange, arrange_within_limits, split_codes
from zerobubble.search.bounds import lower_bound
from zerobubble.search.climb import Mutation, climb
from zerobubble.search.effort import Effort
from zerobubble.search.justify import justified
from zerobubble.search.known import Known
from zerobubble.search.limits import smallest_memory
from zerobubble.search.listing import list_ops
from zerobubble.search.portfolio import FixedRule, Rule, budgeted
from zerobubble.search.problem import Problem
from zerobubble.search.scaling import with_limits
from zerobubble.search.shape import Reshaping, Shape
from zerobubble.search.tabu import tabu_searched
from zerobubble.search.template import Template, num_passes

# A schedule whose time is above the bound by no more than this share is proved optimal.
PROVED = 1e-7
R = TypeVar("R", bound=Rule)

_LEAST_TRIES = 3
# What is done for a try besides placing ops takes as long as placing so many.
_OPS_OF_A_TRY = 1_500
# A small problem has been seen from all sides after so many tries for each of its ops.
_TRIES_AN_OP, _MOVES_AN_OP = 20, 2_000
# Orders of more ops than this are moved less often, so that it takes no longer.
_LARGEST_MOVED = 6_000
_CHOSEN_RULES, _NUM_SHAPED, _NUM_JUSTIFIED, _NUM_MOVED = 6, 3, 2, 2
# A named schedule is built for a larger problem if it idles little more than the best.
_CLOSE_IDLE = 1.2
# Share of the mean over ranks in what is climbed on, so that a step on any rank counts.
_MEAN_SHARE = 0.1
_FEW_PATIENCES = (0.0, 1.0)
_PASSES_JUSTIFIED = 1 + 2 * len(_FEW_PATIENCES)
# An order is worth being justified if it idles at most so many times what is good enough.
_WORTH = 2.5
_NUM_ROUNDS, _PATIENCES = 16, (0.0, 0.5, 1.0)
# Registered schedules of larger problems are built for fewer microbatches, and spliced.
_LARGEST_BUILT = 200_000
_BUDGET_SHARES = (0.15, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


class _Try(NamedTuple, Generic[R]):
    """A rule that has been tried.

    Attributes:
        value: the objective that it led to.
        rule: the rule.
        best: the smallest objective until then, which its budgets related to.
    """

    value: float
    rule: R
    best: float | None


class Size:
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
        self.tries: list[_Try[Rule]] = []
        self.num_tried = 0

    @property
    def value(self) -> float:
        """The smallest objective so far."""
        return self.best.value if self.best is not None else np.inf

    @property
    def is_done(self) -> bool:
        """Whether nothing can be better than the best so far."""
        return self.value <= self.bound * (1 + PROVED)

    def is_shorter_than(self, other: "Size") -> bool:
        """Say whether this is the other problem with fewer microbatches."""
        same_costs = self.problem.costs is other.problem.costs
        return same_costs and self.problem.num_microbatches < other.problem.num_microbatches

    def keep(self, arrangement: Arrangement) -> float:
        """Take note of an order, and keep it if it is the best so far."""
        self.num_tried += 1
        if arrangement.value < self.value * (1 - 1e-12):
            self.best = arrangement
        return arrangement.value

    def try_known(self, known: Sequence[Known], has_more_room: bool) -> list[tuple[float, Known]]:
        """Try named schedules, and V rounds; give the named ones that fit with their values.

        Args:
            known: what builds them.
            has_more_room: give also those that fit with memory for one more microbatch: on a copy
                of the problem limits are not exact.
        """
        problem, scored = self.problem, []
        microbatch = smallest_memory(problem.costs, problem.placement)
        roomy = with_limits(problem, np.asarray(problem.limits) + has_more_room * microbatch)
        for build in known if problem.num_ops <= _LARGEST_BUILT else ():
            with suppress(ScheduleError):  # it is not defined for these numbers
                num_ranks = problem.placement.num_ranks
                schedule = build(num_ranks, problem.num_microbatches, problem.costs)
                codes = split_codes(schedule)
                found = arrange_within_limits(problem, codes, schedule.name)
                if found is not None:
                    self.keep(found)
                elif has_more_room:
                    found = arrange_within_limits(roomy, codes, schedule.name)
                if found is not None:
                    scored.append((found.value, build))
        if problem.placement == v_shape(problem.placement.num_ranks):
            self._try_rounds()
        return scored

    def is_close(self, value: float) -> bool:
        """Say whether something is good enough to be tried on a larger problem too."""
        load = float(self.problem.loads.max())
        return value - load <= _CLOSE_IDLE * (self.value - load) + PROVED * load

    def _try_rounds(self) -> None:
        """Try the rounds of a V with each of its switches, and for makespan with budgets."""
        idle = np.inf
        shares = (None, *_BUDGET_SHARES) if self.problem.objective == "makespan" else (None,)
        for share, backward, forward in product(shares, (False, True), (False, True)):
            if self.is_done:
                return
            rounds = v_rounds(
                self.problem.costs,
                self.problem.num_microbatches,
                self.problem.limits,
                push_backward=backward,
                push_forward=forward,
                budget=None if share is None else share * idle,
            )
            idle = min(idle, rounds.idle)
            found = arrange(self.problem, np.concatenate(rounds.orders))
            assert found is not None, "rounds follow each other in time"
            self.keep(found)

    def try_rule(self, rule: Rule) -> None:
        """Try a rule, and remember how good it was."""
        best = self.value if self.best is not None else None
        found = self._list_ops(rule)
        assert found is not None, "anything is good enough"
        self.tries.append(_Try(self.keep(found), rule, best))

    def _list_ops(self, rule: Rule, worst: float = np.inf) -> Arrangement | None:
        best = None if self.best is None else self.value
        return list_ops(self.problem, rule.preferences(self.problem, self.bound, best), worst)

    def try_rules(self, rules: Iterable[Rule], num_ops: int) -> None:
        """Try rules until so many ops have been placed, then the best ones with budgets."""
        num_tries = max(_LEAST_TRIES, num_ops // (self.problem.num_ops + _OPS_OF_A_TRY))
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
        return [each.rule for each in _distinct(self.tries)]

    def best_of(self, kind: type[R]) -> list[_Try[R]]:
        """Give the best tries of one kind of rule, best first, one for each value."""
        tries = [(value, rule, best) for value, rule, best in self.tries if isinstance(rule, kind)]
        return _distinct([_Try(*each) for each in tries])

    def tune(self, templates: Sequence[Template], effort: Effort, num_climbs: int) -> None:
        """Climb over templates, from the given ones and the best tried here before."""
        for template in templates:
            self.try_rule(template)
        start = [each.rule for each in self.best_of(Template)]
        change = Mutation(start, num_passes(self.problem.placement))
        for seed in range(num_climbs):
            self._climb(start[seed % len(start)], change, effort.climbed // num_climbs, seed)

    @property
    def is_deep(self) -> bool:
        """Whether ranks hold three stages or more: only then justification gains much."""
        return self.problem.placement.num_stages > 2 * self.problem.placement.num_ranks

    def tune_justified(self, num_ops: int) -> None:
        """Climb over templates by what justification makes of them."""
        start = [each.rule for each in self.best_of(Template)][:_NUM_JUSTIFIED]
        change = Mutation(start, num_passes(self.problem.placement))
        for seed, template in enumerate(start if self.is_deep else ()):
            self._climb(template, change, num_ops // len(start), seed, self._justified_once)

    def polish(
        self, effort: Effort, num_justified: int, num_moves: int, copied: Arrangement | None
    ) -> None:
        """Improve shapes stage by stage, and the best orders as a whole and op by op.

        Args:
            effort: what is spent on climbs.
            num_justified: what is spent on climbs by what justification makes of them.
            num_moves: how many moves of single ops are made.
            copied: the best order of a copy, whose rhythm is one of the shapes.
        """
        starts = [] if self.best is None else [self.best]
        if copied is not None:
            shapes = Shape.fitted(copied, self.problem).variants()
            starts += [self._try_justified(shape) for shape in shapes]
        starts += self._climb_from_templates(effort.shaped)
        if self.is_deep:
            change, share = Reshaping(self.problem), num_justified // _NUM_JUSTIFIED
            for seed, each in enumerate(self.best_of(Shape)[:_NUM_JUSTIFIED]):
                starts += self._climb(each.rule, change, share, seed, self._justified_once)
        of_value = {start.value: self._justified(start) for start in starts if not self.is_done}
        self._move_ops([of_value[value] for value in sorted(of_value)[:_NUM_MOVED]], num_moves)

    def _try_justified(self, shape: Shape) -> Arrangement:
        found = self._list_ops(shape)
        assert found is not None, "anything is good enough"
        found = self._justified_once(found)
        self.tries.append(_Try[Rule](found.value, shape, None))
        return found

    def _climb_from_templates(self, num_ops: int) -> list[Arrangement]:
        """Climb over shapes from what the best templates lead to."""
        change, found = Reshaping(self.problem), []
        chosen = self.best_of(Template)[:_NUM_SHAPED]
        for seed, (_, template, best) in enumerate(chosen):
            shape = Shape.of(template.preferences(self.problem, self.bound, best), self.problem)
            found += self._climb(shape, change, num_ops // len(chosen), seed)
        return found

    def _climb(
        self,
        start: R,
        change: Callable[[R, np.random.Generator], R],
        num_ops: int,
        seed: int,
        improve: Callable[[Arrangement], Arrangement] | None = None,
    ) -> list[Arrangement]:
        """Climb over rules until so many ops have been placed; give the best found, if any."""
        largest, mean_load = float(self.problem.loads.max()), float(self.problem.loads.mean())

        def value_of(rule: R, worst: float) -> float:
            best = self.value if self.best is not None else None
            worst -= _MEAN_SHARE * mean_load
            if improve is not None:
                worst = largest + _WORTH * (worst - largest)
            arrangement = self._list_ops(rule, worst)
            if arrangement is None:
                return np.inf
            if improve is not None:
                arrangement = improve(arrangement)
            tries.append(_Try(self.keep(arrangement), rule, best))
            if not found or arrangement.value < found[-1].value:
                found.append(arrangement)
            return arrangement.value + _MEAN_SHARE * float(arrangement.times_of_ranks.mean())

        tries: list[_Try[R]] = []
        found: list[Arrangement] = []
        passes = 1 if improve is None else _PASSES_JUSTIFIED
        num_tries = num_ops // (passes * self.problem.num_ops + _OPS_OF_A_TRY)
        num_tries = min(num_tries, _TRIES_AN_OP * self.problem.num_ops)
        load = largest + _MEAN_SHARE * mean_load
        for _ in climb(start, change, value_of, load, num_tries, seed):
            if self.is_done:
                break
        self.tries += [_Try[Rule](*each) for each in _distinct(tries)]
        return found[-1:]

    def _justified_once(self, arrangement: Arrangement) -> Arrangement:
        return self._justified(arrangement, 1, _FEW_PATIENCES)

    def _justified(
        self,
        arrangement: Arrangement,
        num_rounds: int = _NUM_ROUNDS,
        patiences: Sequence[float] = _PATIENCES,
    ) -> Arrangement:
        """Push an order back and forth; give the best on the way."""
        for better in justified(arrangement, num_rounds, patiences, self.bound):
            self.keep(better)
            arrangement = min(arrangement, better, key=lambda found: found.value)
        return arrangement

    def _move_ops(self, starts: Sequence[Arrangement], num_moves: int) -> None:
        """Improve orders by moves on their critical paths."""
        num_ops = self.problem.num_ops
        num_moves = min(num_moves, num_moves * _LARGEST_MOVED // num_ops, _MOVES_AN_OP * num_ops)
        if num_moves and starts and not self.is_done:
            for found in tabu_searched(starts, num_moves, self.bound):
                self.keep(found)


def _distinct(tries: list[_Try[R]]) -> list[_Try[R]]:
    """Give the best few tries, the earliest of those with equal values."""
    of_value = {each.value: each for each in reversed(tries)}
    return [of_value[value] for value in sorted(of_value)[:_CHOSEN_RULES]]
