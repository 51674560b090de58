"""How are preferences tuned stage by stage, once a template has given their rough shape?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes, Kind
from zerobubble.search.orders.arrangement import Arrangement
from zerobubble.search.orders.listing import Preferences, keys_of
from zerobubble.search.problem import Problem

_LARGEST_CAP = 1_000


@dataclass(frozen=True, eq=False)
class Shape:
    """Preferences of one placement for any number of microbatches.

    Attributes:
        keys: of F, B and W by stage, for the first microbatch.
        caps, warm_caps, patience, makes_room, budgets: as in ``Preferences``.
    """

    keys: Floats
    caps: Codes
    warm_caps: Codes
    patience: float
    makes_room: float
    budgets: Floats

    @classmethod
    def of(cls, preferences: Preferences, problem: Problem) -> "Shape":
        """Take the shape of preferences whose keys grow by the period with each microbatch."""
        return cls(
            preferences.keys.reshape(3, -1, problem.num_microbatches)[:, :, 0].copy(),
            np.minimum(preferences.caps, _LARGEST_CAP),
            np.minimum(preferences.warm_caps, _LARGEST_CAP),
            preferences.patience,
            preferences.makes_room,
            preferences.budgets.copy(),
        )

    @classmethod
    def fitted(cls, arrangement: Arrangement, problem: Problem) -> "Shape":
        """Take the rhythm of an order, for another number of ranks or microbatches of the problem.

        Keys are the usual starts within the period, caps what is between F and B at most. Ranks in
        between are interpolated; starts and caps grow with the number of ranks.
        """
        few, many = arrangement.problem.placement, problem.placement
        keys, caps, warm_caps = _rhythm(arrangement)
        if few != many:
            growth = many.num_ranks / few.num_ranks
            keys, caps, warm_caps = (
                growth * _between(column, few.num_ranks, many.num_ranks)
                for column in (keys, caps, warm_caps)
            )
        no_budgets = np.full(many.num_ranks, -1.0)
        return cls(keys, _whole(caps), _whole(warm_caps), 0.0, 1.0, no_budgets)

    def variants(self) -> Iterator["Shape"]:
        """Give it with and without some more room and patience."""
        for more, patience in product((0, 1), (0.0, 0.5)):
            yield replace(self, caps=self.caps + more, patience=patience)

    def preferences(self, problem: Problem, bound: float, best: float | None) -> Preferences:
        """Give the preferences for a problem; arguments as for ``Rule``."""
        return Preferences(
            keys_of(problem, self.keys, problem.period),
            self.caps,
            self.warm_caps,
            self.patience,
            np.inf,
            self.makes_room,
            self.budgets,
        )


def _rhythm(arrangement: Arrangement) -> tuple[Floats, Floats, Floats]:
    """Give keys by kind and stage, and by stage the most between F and B, also before any B."""
    problem = arrangement.problem
    num_stages, count = problem.placement.num_stages, problem.num_microbatches
    start = arrangement.start.reshape(3, num_stages, count)
    end_b = arrangement.end.reshape(3, num_stages, count)[Kind.B]
    usual = slice(count // 4, count - count // 4)
    keys = np.median((start - problem.period * np.arange(count))[:, :, usual], axis=2)
    held = [
        np.arange(1, count + 1) - np.searchsorted(end_b[stage], start[Kind.F, stage], side="right")
        for stage in range(num_stages)
    ]
    holders = np.array(problem.placement.stage_to_rank)
    first_b = np.full(problem.placement.num_ranks, np.inf)
    np.minimum.at(first_b, holders, start[Kind.B, :, 0])
    warm = (start[Kind.F] < first_b[holders, None]).sum(axis=1)
    return keys, np.max(held, axis=1).astype(np.float64), warm.astype(np.float64)


def _whole(caps: Floats) -> Codes:
    rounded: Codes = np.maximum(1, np.round(caps)).astype(np.int64)
    return rounded


def _between(column: Floats, few: int, many: int) -> Floats:
    """Spread numbers of stages, in passes over few ranks, evenly over many."""
    of_passes = column.reshape(*column.shape[:-1], -1, few)
    at = np.arange(many) * (few - 1) / max(1, many - 1)
    left = np.minimum(at.astype(np.int64), max(0, few - 2))
    right, share = np.minimum(left + 1, few - 1), at - left
    spread: Floats = of_passes[..., left] * (1 - share) + of_passes[..., right] * share
    return spread.reshape(*column.shape[:-1], -1)


class Reshaping:
    """Small changes of a shape: of one number, of a run of stages, or between stages of a rank."""

    def __init__(self, problem: Problem) -> None:
        placement = problem.placement
        self.num_ranks, self.num_stages = placement.num_ranks, placement.num_stages
        self.stages = [np.array(placement.stages_of(rank)) for rank in range(self.num_ranks)]
        # A third of a stage's share of the period: about the time of one op.
        self.unit = problem.period * self.num_ranks / self.num_stages / 3
        self.idle = float(problem.loads.max()) - problem.loads

    def __call__(self, shape: Shape, generator: np.random.Generator) -> Shape:
        """Change one or two things about a shape."""
        changes = (
            self._shift_keys,
            self._change_caps,
            self._change_caps,
            self._swap_caps,
            self._change_budgets,
            self._change_patience,
        )
        chances = (0.3, 0.2, 0.15, 0.1, 0.2, 0.05)
        for _ in range(int(generator.integers(1, 3))):
            shape = changes[int(generator.choice(len(changes), p=chances))](shape, generator)
        return shape

    def _run_of_stages(self, generator: np.random.Generator) -> slice:
        """Choose one stage, some in a row, or all from one on."""
        begin, way = int(generator.integers(self.num_stages)), generator.random()
        if way < 0.4:
            return slice(begin, begin + 1)
        if way < 0.75:
            return slice(begin, begin + 1 + int(generator.integers(self.num_ranks)))
        return slice(begin, None)

    def _shift_keys(self, shape: Shape, generator: np.random.Generator) -> Shape:
        keys = shape.keys.copy()
        keys[int(generator.integers(2)), self._run_of_stages(generator)] += (
            generator.normal() * self.unit
        )
        return replace(shape, keys=keys)

    def _change_caps(self, shape: Shape, generator: np.random.Generator) -> Shape:
        name = str(generator.choice(["caps", "warm_caps"]))
        caps, stages = getattr(shape, name).copy(), self._run_of_stages(generator)
        step = 1 if generator.random() < 0.5 else -1
        caps[stages] = np.clip(caps[stages] + step, 1, _LARGEST_CAP)
        return replace(shape, **{name: caps})

    def _swap_caps(self, shape: Shape, generator: np.random.Generator) -> Shape:
        """Move one from the cap of a stage to that of another of the same rank."""
        stages = self.stages[int(generator.integers(self.num_ranks))]
        name = str(generator.choice(["caps", "warm_caps"]))
        caps = getattr(shape, name).copy()
        more, less = generator.choice(stages, 2)
        caps[more] += 1
        caps[less] = max(1, caps[less] - 1)
        return replace(shape, **{name: caps})

    def _change_budgets(self, shape: Shape, generator: np.random.Generator) -> Shape:
        budgets, way = shape.budgets.copy(), generator.random()
        if way < 0.5:
            rank = int(generator.integers(self.num_ranks))
            budgets[rank] = max(-1.0, budgets[rank] + 3 * self.unit * generator.normal())
        elif way < 0.9:
            budgets = np.maximum(-1.0, budgets + 3 * self.unit * generator.normal())
        else:
            budgets = np.full(self.num_ranks, -1.0)
        return replace(shape, budgets=budgets)

    def _change_patience(self, shape: Shape, generator: np.random.Generator) -> Shape:
        if generator.random() < 0.3:
            return replace(shape, makes_room=1.0 - shape.makes_room)
        return replace(shape, patience=float(generator.choice([0.0, 0.25, 0.5, 0.75, 1.0])))
