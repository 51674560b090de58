"""What is tried on one copy of a problem, or on the problem itself, and what was the best?"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice, product

import numpy as np

from zerobubble.errors import ScheduleError
from zerobubble.ir import v_shape
from zerobubble.schedules.v_rounds import v_rounds
from zerobubble.search.effort import Effort
from zerobubble.search.finds import OPS_OF_A_TRY, PROVED, Finds, Try
from zerobubble.search.known import Known
from zerobubble.search.limits import smallest_memory
from zerobubble.search.moves.tabu import tabu_searched
from zerobubble.search.orders.arrangement import (
    Arrangement,
    arrange,
    arrange_within_limits,
    split_codes,
)
from zerobubble.search.rules.climb import Mutation
from zerobubble.search.rules.pattern import find_pattern
from zerobubble.search.rules.portfolio import FixedRule, Rule, budgeted
from zerobubble.search.rules.shape import Reshaping, Shape
from zerobubble.search.rules.template import Template, num_passes
from zerobubble.search.scaling import with_limits

_LEAST_TRIES = 3
_MOVES_AN_OP = 2_000
# Orders of more ops than this are moved less often, so that it takes no longer.
_LARGEST_MOVED = 6_000
_NUM_SHAPED, _NUM_JUSTIFIED, _NUM_MOVED = 3, 2, 2
# A named schedule is built for a larger problem if it idles little more than the best.
_CLOSE_IDLE = 1.2
# Registered schedules of larger problems are built for fewer microbatches, and spliced.
_LARGEST_BUILT = 200_000
_BUDGET_SHARES = (0.15, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


class Size(Finds):
    """The search on one copy of the problem, or on the problem itself."""

    def is_shorter_than(self, other: "Size") -> bool:
        """Say whether this is the other problem with fewer microbatches."""
        same_costs = self.problem.costs is other.problem.costs
        return same_costs and self.problem.num_microbatches < other.problem.num_microbatches

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

    def try_rules(self, rules: Iterable[Rule], num_ops: int) -> None:
        """Try rules until so many ops have been placed, then the best ones with budgets."""
        num_tries = max(_LEAST_TRIES, num_ops // (self.problem.num_ops + OPS_OF_A_TRY))
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

    def tune(self, templates: Sequence[Template], effort: Effort, num_climbs: int) -> None:
        """Climb over templates, from the given ones and the best tried here before."""
        for template in templates:
            self.try_rule(template)
        start = [each.rule for each in self.best_of(Template)]
        change = Mutation(start, num_passes(self.problem.placement))
        self.climb([start[i % len(start)] for i in range(num_climbs)], change, effort.climbed)

    def justify_rules(self) -> None:
        """Push back and forth, once, what the best rules lead to."""
        if self.is_deep:
            for each in self.best_tries()[:_NUM_JUSTIFIED]:
                if not self.is_done:
                    self.justified_once(self.list_again(each))

    @property
    def is_deep(self) -> bool:
        """Whether ranks hold three stages or more: only then justification gains much."""
        return self.problem.placement.num_stages > 2 * self.problem.placement.num_ranks

    def tune_justified(self, num_ops: int) -> None:
        """Climb over templates by what justification makes of them."""
        if self.is_deep:
            start = [each.rule for each in self.best_of(Template)][:_NUM_JUSTIFIED]
            change = Mutation(start, num_passes(self.problem.placement))
            self.climb(start, change, num_ops, is_justified=True)

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
        starts += self._climb_over_shapes(effort.shaped, self._patterns(effort.patterns))
        if self.is_deep:
            chosen = [each.rule for each in self.best_of(Shape)[:_NUM_JUSTIFIED]]
            starts += self.climb(chosen, Reshaping(self.problem), num_justified, is_justified=True)
        if not self.is_done:
            starts = sorted(self.justified(starts), key=lambda found: found.value)
            of_value = {found.value: found for found in starts}
            self._move_ops(list(of_value.values())[:_NUM_MOVED], num_moves)

    def _try_justified(self, shape: Shape) -> Arrangement:
        found = self.must_list(shape)
        self.keep(found)
        found = self.justified_once(found)
        self.tries.append(Try(found.value, shape, None))
        return found

    def _patterns(self, work: int) -> list[Shape]:
        """Give the best preferences with the rhythm of a pattern that fits, if one is found."""
        pattern = find_pattern(self.problem, work) if work and not self.is_done else None
        if pattern is None:
            return []
        shapes = list(pattern.shapes(self.problem))
        values = [self.keep(self.must_list(shape)) for shape in shapes]
        return [shapes[int(np.argmin(values))]]

    def _climb_over_shapes(self, num_ops: int, patterns: list[Shape]) -> list[Arrangement]:
        """Climb over shapes from patterns, and from what the best templates lead to."""
        shapes = patterns + [
            Shape.of(each.rule.preferences(self.problem, self.bound, each.best), self.problem)
            for each in self.best_of(Template)[:_NUM_SHAPED]
        ]
        return self.climb(shapes, Reshaping(self.problem), num_ops)

    def _move_ops(self, starts: Sequence[Arrangement], num_moves: int) -> None:
        """Improve orders by moves on their critical paths."""
        num_ops = self.problem.num_ops
        num_moves = min(num_moves, num_moves * _LARGEST_MOVED // num_ops, _MOVES_AN_OP * num_ops)
        if num_moves and starts and not self.is_done:
            for found in tabu_searched(starts, num_moves, self.good_enough):
                self.keep(found)
