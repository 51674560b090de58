"""Which fixed rules of preference are worth a try on any problem?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, Protocol

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.search.orders.listing import UNCAPPED, Preferences, keys_of
from zerobubble.search.problem import Problem

_BUDGET_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)

First = Literal["forward", "backward", "earliest", "earliest and weight"]
Cap = Literal["none", "period", "both", "middle", "forward"]


class Rule(Protocol):
    """What gives preferences for any problem, so that it can be found on a small one."""

    def preferences(self, problem: Problem, bound: float, best: float | None) -> Preferences:
        """Give the preferences for a problem.

        Args:
            problem: what is scheduled.
            bound: what the objective cannot be below.
            best: the smallest objective so far, if any; budgets lie between the two.
        """


@dataclass(frozen=True)
class FixedRule:
    """Forwards first, backwards first, or what could start earliest; under one of several caps.

    Caps share out the round trip of a microbatch: as many are in flight as rounds of the period,
    or of the rank's forwards (and backwards) alone, fit in it.

    Attributes:
        first: which ops go first; W goes last unless named.
        cap: the time of a round that caps are counted in.
        deeper_first: whether a deeper stage goes before a shallower one.
        patience, makes_room: as in ``Preferences``.
        budget_share: idle time that a rank may spend: this share of the way from what the bound
            leaves to what the best so far leaves; None for no budget.
    """

    first: First
    cap: Cap
    deeper_first: bool = False
    patience: float = 0.0
    makes_room: float = 0.0
    budget_share: float | None = None

    def preferences(self, problem: Problem, bound: float, best: float | None) -> Preferences:
        """Give the preferences for a problem; arguments as for ``Rule``."""
        caps = _caps(self.cap, problem)
        return Preferences(
            keys_of(problem, self._keys(problem), problem.period),
            caps,
            caps,
            self.patience,
            np.inf,
            self.makes_room,
            self._budgets(problem, bound, best),
        )

    def _keys(self, problem: Problem) -> list[Floats]:
        num_stages, period = problem.placement.num_stages, problem.period
        forward, backward = problem.earliest_starts
        ahead = 10.0 * period * problem.num_microbatches * (num_stages + 1)
        last = np.full(num_stages, 3 * ahead)
        if self.first == "earliest":
            return [forward, backward, last]
        if self.first == "earliest and weight":
            return [forward, backward, backward + period / 2]
        depth = ahead / num_stages / 10 if self.deeper_first else 0.0
        order = -depth * np.arange(num_stages, dtype=np.float64)
        if self.first == "forward":
            return [order - ahead, order, last]
        return [order, order - ahead, last]

    def _budgets(self, problem: Problem, bound: float, best: float | None) -> Floats:
        if self.budget_share is None or best is None:
            return np.full(problem.placement.num_ranks, -1.0)
        load = float(problem.loads.max())
        low, high = max(0.0, bound - load), max(0.0, best - load)
        return load - problem.loads + low + self.budget_share * (max(low, high) - low)


def _caps(name: Cap, problem: Problem) -> Codes:
    """Say how many microbatches of each stage may be in flight."""
    holders, costs = np.array(problem.placement.stage_to_rank), problem.costs
    if name == "none":
        return np.full(len(holders), UNCAPPED)
    forward = np.bincount(holders, weights=costs.forward)[holders]
    both = np.bincount(holders, weights=costs.forward + costs.backward_input)[holders]
    rounds = {
        "period": np.full(len(holders), problem.period),
        "both": both,
        "middle": (forward + both) / 2,
        "forward": forward,
    }
    forward_starts, backward_starts = problem.earliest_starts
    trip = backward_starts - forward_starts
    in_flight = np.ceil(trip / np.maximum(rounds[name], 1e-12) - 1e-9)
    caps: Codes = np.clip(in_flight, 1, UNCAPPED).astype(np.int64)
    return caps


def fixed_rules(problem: Problem) -> Iterator[FixedRule]:
    """Yield all rules without a budget."""
    orders = (
        (True, False) if problem.placement.num_ranks < problem.placement.num_stages else (False,)
    )
    for rule in _families():
        depths = orders if rule.first in ("forward", "backward") else (False,)
        for depth, patience, makes_room in product((False, True), (0.0, 0.5, 1.0), (0.0, 1.0)):
            if depth in depths:
                yield replace(rule, deeper_first=depth, patience=patience, makes_room=makes_room)


def _families() -> Iterator[FixedRule]:
    forward_caps: tuple[Cap, ...] = ("period", "both", "middle", "forward")
    backward_caps: tuple[Cap, ...] = ("none", "period", "both", "forward")
    for cap in forward_caps:
        yield FixedRule("forward", cap)
    for cap in backward_caps:
        yield FixedRule("backward", cap)
    for cap in backward_caps[:2]:
        yield FixedRule("earliest", cap)
        yield FixedRule("earliest and weight", cap)


def budgeted(rule: FixedRule) -> Iterator[FixedRule]:
    """Yield a rule with budgets between what the bound and what the best so far leave idle."""
    for patience, makes_room, share in product((0.0, 0.5), (0.0, 1.0), _BUDGET_SHARES):
        yield replace(rule, patience=patience, makes_room=makes_room, budget_share=share)
