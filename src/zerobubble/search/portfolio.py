"""Which fixed rules of preference are worth a try on any problem?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes
from zerobubble.search.listing import Preferences
from zerobubble.search.problem import Problem

UNCAPPED = 2**40
_PATIENCE = (0.0, 0.5, 1.0)
_BUDGET_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Family:
    """Keys and caps; patience, room and budgets are varied on top."""

    key_f: Floats
    key_b: Floats
    key_w: Floats
    period: float
    caps: Codes

    def preferences(
        self, patience: float, makes_room: float, budgets: Floats | None = None
    ) -> Preferences:
        """Complete the family to preferences, with no budget for idle time by default."""
        if budgets is None:
            budgets = np.full(len(self.caps), -1.0)
        return Preferences(
            self.key_f,
            self.key_b,
            self.key_w,
            self.period,
            self.caps,
            self.caps,
            patience,
            makes_room,
            budgets,
        )


def families(problem: Problem) -> Iterator[Family]:
    """Yield forward-first, backward-first and as-soon-as-possible keys under several caps.

    Caps share out the round trip of a microbatch: as many are in flight as rounds of the period,
    or of the rank's forwards (and backwards) alone, fit in it.
    """
    num_stages = problem.placement.num_stages
    period = problem.period
    zero, depth = np.zeros(num_stages), np.arange(num_stages, dtype=np.float64)
    ahead = 10.0 * period * problem.num_microbatches * (num_stages + 1)
    caps = _caps(problem, period)
    deeper_first = (zero, -depth * ahead / num_stages / 10)
    orders = deeper_first if problem.placement.num_ranks < num_stages else deeper_first[:1]
    last = np.full(num_stages, 3 * ahead)
    for cap, order in product(("period", "both", "middle", "forward"), orders):
        yield Family(order - ahead, order, last, period, caps[cap])
    for cap, order in product(("none", "period", "both", "forward"), orders):
        yield Family(order, order - ahead, last, period, caps[cap])
    for cap in ("none", "period"):
        heads = problem.earliest_starts
        yield Family(*heads, last, period, caps[cap])
        yield Family(*heads, heads[1] + period / 2, period, caps[cap])


def _caps(problem: Problem, period: float) -> dict[str, Codes]:
    """Tabulate how many microbatches of a stage may be in flight, in several ways of counting."""
    holders, costs = np.array(problem.placement.stage_to_rank), problem.costs
    forward = np.bincount(holders, weights=costs.forward)[holders]
    both = np.bincount(holders, weights=costs.forward + costs.backward_input)[holders]
    forward_starts, backward_starts = problem.earliest_starts
    trip = backward_starts - forward_starts
    rounds = {
        "period": np.full(len(trip), period),
        "both": both,
        "middle": (forward + both) / 2,
        "forward": forward,
    }
    caps = {
        name: np.maximum(1, np.ceil(trip / np.maximum(time, 1e-12) - 1e-9)).astype(np.int64)
        for name, time in rounds.items()
    }
    return caps | {"none": np.full(len(trip), UNCAPPED)}


def variants(family: Family) -> Iterator[Preferences]:
    """Yield a family without budgets."""
    for patience, makes_room in product(_PATIENCE, (0.0, 1.0)):
        yield family.preferences(patience, makes_room)


def budgeted(problem: Problem, family: Family, bound: float, best: float) -> Iterator[Preferences]:
    """Yield a family with budgets between what the bound and what the best so far leave idle."""
    load = float(problem.loads.max())
    low = max(0.0, bound - load)
    high = max(low, best - load)
    for patience, makes_room, share in product(_PATIENCE[:2], (0.0, 1.0), _BUDGET_SHARES):
        budgets = load - problem.loads + low + share * (high - low)
        yield family.preferences(patience, makes_room, budgets)
