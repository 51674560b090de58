"""What has been found for one problem, and by which rules? Climbs over rules add to it."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from zerobubble.search.bounds import Bound, lower_bound
from zerobubble.search.orders.arrangement import Arrangement
from zerobubble.search.orders.justify import best_justified
from zerobubble.search.orders.listing import list_ops
from zerobubble.search.problem import Problem
from zerobubble.search.rules.climb import climb
from zerobubble.search.rules.portfolio import Rule
from zerobubble.search.threads import side_by_side

# A schedule whose time is above the bound by no more than this share is proved optimal.
PROVED = 1e-7
R = TypeVar("R", bound=Rule)

# What is done for a try besides placing ops takes as long as placing so many.
OPS_OF_A_TRY = 1_500
# A small problem has been seen from all sides after so many tries for each of its ops.
_TRIES_AN_OP = 20
_CHOSEN_RULES = 6
# Share of the mean over ranks in what is climbed on, so that a step on any rank counts.
_MEAN_SHARE = 0.1
_FEW_PATIENCES = (0.0, 1.0)
_PASSES_JUSTIFIED = 1 + 2 * len(_FEW_PATIENCES)
# An order is worth being justified if it idles at most so many times what is good enough.
_WORTH = 2.5
_NUM_ROUNDS, _PATIENCES = 16, (0.0, 0.5, 1.0)


class Try(NamedTuple, Generic[R]):
    """A rule that has been tried.

    Attributes:
        value: the objective that it led to.
        rule: the rule.
        best: the smallest objective until then, which its budgets related to.
    """

    value: float
    rule: R
    best: float | None


class Finds:
    """The best order of a problem so far, and the rules that were tried.

    Args:
        problem: what is scheduled.
        certificate: the lower bound, if it has been worked out before.
        best: an order to start from.
    """

    def __init__(
        self,
        problem: Problem,
        certificate: Bound | None = None,
        best: Arrangement | None = None,
    ) -> None:
        self.problem = problem
        self.certificate = certificate or lower_bound(
            problem.costs,
            problem.placement,
            problem.num_microbatches,
            problem.limits,
            problem.objective,
        )
        self.bound = self.certificate.value
        self.best = best
        self.tries: list[Try[Rule]] = []
        self.num_tried = 0

    @property
    def value(self) -> float:
        """The smallest objective so far."""
        return self.best.value if self.best is not None else np.inf

    @property
    def good_enough(self) -> float:
        """A value that is proved optimal."""
        return self.bound * (1 + PROVED)

    @property
    def is_done(self) -> bool:
        """Whether nothing can be better than the best so far."""
        return self.value <= self.good_enough

    def keep(self, arrangement: Arrangement, num_tried: int = 1) -> float:
        """Take note of an order, the best of so many, and keep it if it is the best so far."""
        self.num_tried += num_tried
        if arrangement.value < self.value * (1 - 1e-12):
            self.best = arrangement
        return arrangement.value

    def try_rule(self, rule: Rule) -> None:
        """Try a rule, and remember how good it was."""
        best = self._best_value
        self.tries.append(Try(self.keep(self.must_list(rule)), rule, best))

    def must_list(self, rule: Rule) -> Arrangement:
        """Arrange the ops as a rule leads to."""
        found = self._list_ops(rule)
        assert found is not None, "anything is good enough"
        return found

    @property
    def _best_value(self) -> float | None:
        return None if self.best is None else self.value

    def _list_ops(self, rule: Rule, worst: float = np.inf) -> Arrangement | None:
        preferences = rule.preferences(self.problem, self.bound, self._best_value)
        return list_ops(self.problem, preferences, worst)

    def best_tries(self) -> list[Try[Rule]]:
        """Give the best tries, best first, one for each value."""
        return _distinct(self.tries)

    def best_rules(self) -> list[Rule]:
        """Give the rules of the best tries."""
        return [each.rule for each in self.best_tries()]

    def list_again(self, each: Try[R]) -> Arrangement:
        """Arrange the ops as a try did, whatever has been found since."""
        preferences = each.rule.preferences(self.problem, self.bound, each.best)
        found = list_ops(self.problem, preferences)
        assert found is not None, "anything is good enough"
        return found

    def best_of(self, kind: type[R]) -> list[Try[R]]:
        """Give the best tries of one kind of rule, best first, one for each value."""
        tries = [(value, rule, best) for value, rule, best in self.tries if isinstance(rule, kind)]
        return _distinct([Try(*each) for each in tries])

    def justified_once(self, arrangement: Arrangement) -> Arrangement:
        """Push an order back and forth once; give the best on the way."""
        best, number = best_justified(arrangement, 1, _FEW_PATIENCES, self.good_enough)
        self.keep(best, number)
        return best

    def justified(self, starts: Sequence[Arrangement]) -> list[Arrangement]:
        """Push each order back and forth, side by side; give the best on the way of each."""

        def run(start: Arrangement, cancelled: Event) -> tuple[Arrangement, int]:
            return best_justified(start, _NUM_ROUNDS, _PATIENCES, self.good_enough, cancelled)

        found = side_by_side(run, starts)
        for best, number in found:
            self.keep(best, number)
        return [best for best, _ in found]

    def climb(
        self,
        starts: Sequence[R],
        change: Callable[[R, np.random.Generator], R],
        num_ops: int,
        *,
        is_justified: bool = False,
    ) -> list[Arrangement]:
        """Climb over rules from each start, side by side; give the best order of each climb.

        Args:
            starts: the rules to start from.
            change: gives a neighbour of a rule.
            num_ops: how many ops all climbs together place.
            is_justified: whether a rule is worth what justification makes of it.
        """
        climbs = [
            _Climb(self.problem, self.certificate, self.best, seed, is_justified)
            for seed in range(len(starts))
        ]

        def run(each: _Climb, cancelled: Event) -> list[Arrangement]:
            return each.run(starts[each.seed], change, num_ops // len(starts), cancelled)

        found = side_by_side(run, climbs)
        for each in climbs:
            self.tries += each.tries
            self.num_tried += each.num_tried
            if each.best is not None and each.value < self.value * (1 - 1e-12):
                self.best = each.best
        return [arrangement for of_climb in found for arrangement in of_climb]


class _Climb(Finds):
    """What one climb finds, without knowing of the others.

    Args:
        problem, certificate, best: as in ``Finds``.
        seed: of all draws.
        is_justified: whether a rule is worth what justification makes of it.
    """

    def __init__(
        self,
        problem: Problem,
        certificate: Bound,
        best: Arrangement | None,
        seed: int,
        is_justified: bool,
    ) -> None:
        super().__init__(problem, certificate, best)
        self.seed = seed
        self.is_justified = is_justified
        self._largest, self._mean = float(problem.loads.max()), float(problem.loads.mean())
        self._found: list[Arrangement] = []

    def run(
        self,
        start: R,
        change: Callable[[R, np.random.Generator], R],
        num_ops: int,
        cancelled: Event,
    ) -> list[Arrangement]:
        """Climb until so many ops have been placed; give the best order found, if any."""
        passes = _PASSES_JUSTIFIED if self.is_justified else 1
        num_tries = num_ops // (passes * self.problem.num_ops + OPS_OF_A_TRY)
        num_tries = min(num_tries, _TRIES_AN_OP * self.problem.num_ops)
        load = self._largest + _MEAN_SHARE * self._mean
        for _ in climb(start, change, self._value_of, load, num_tries, self.seed):
            if self.is_done or cancelled.is_set():
                break
        self.tries = _distinct(self.tries)
        return self._found[-1:]

    def _value_of(self, rule: Rule, worst: float) -> float:
        best = self._best_value
        worst -= _MEAN_SHARE * self._mean
        if self.is_justified:
            worst = self._largest + _WORTH * (worst - self._largest)
        arrangement = self._list_ops(rule, worst)
        if arrangement is None:
            return np.inf
        self.keep(arrangement)
        if self.is_justified:
            arrangement = self.justified_once(arrangement)
        self.tries.append(Try(arrangement.value, rule, best))
        if not self._found or arrangement.value < self._found[-1].value:
            self._found.append(arrangement)
        return arrangement.value + _MEAN_SHARE * float(arrangement.times_of_ranks.mean())


def _distinct(tries: list[Try[R]]) -> list[Try[R]]:
    """Give the best few tries, the earliest of those with equal values."""
    of_value = {each.value: each for each in reversed(tries)}
    return [of_value[value] for value in sorted(of_value)[:_CHOSEN_RULES]]
