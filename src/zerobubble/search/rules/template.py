"""How is a good rhythm described by a dozen numbers, for any placement and memory?

A template gives each stage a start within a period, first for F, then for B, as if every rank had
room: hops from stage to stage within a pass over the ranks, gaps where a pass turns into the next.
List scheduling follows these starts as keys; caps share out the memory in proportion to the time
between F and B. The numbers do not depend on the number of microbatches, so they can be tuned on a
small copy of a problem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.costs import Floats
from zerobubble.ir import Codes, Placement
from zerobubble.search.orders.instance import instance_of
from zerobubble.search.orders.listing import UNCAPPED, Preferences, keys_of
from zerobubble.search.problem import Problem


@dataclass(frozen=True)
class Template:
    """The numbers of a rhythm; times are in units of a third of a stage's share of the period.

    Attributes:
        hops_f: time from stage to stage for F in each pass, never less than F and the transfer;
            -1 stands for what together with such a hop fills a stage's share of the period.
        hops_b: likewise for B, by the pass of the stage that is reached.
        gaps_f: extra time of F where a pass turns into the next.
        gap_turn: extra time between the last F and the first B.
        gaps_b: extra time of B where a pass turns into the one before.
        scarcity: exponent (where memory is scarce) or share (where it is ample) by which memory
            scales the caps.
        extra: what is added to the caps of the first, second, ... stage of each rank.
        warm_shape: shape of the caps before the first B; 0 for the same caps.
        warm_extra: what is added to these.
        patience, makes_room: as in ``Preferences``.
        budget_share: share of the best idle time so far that a rank may spend; 0 for none.
        weight_delay: periods after its B at which W gets its turn; 0 for only in waits.
        forward_bias: added to the keys of F.
        is_capped: whether there are caps at all.
    """

    hops_f: tuple[float, ...]
    hops_b: tuple[float, ...]
    gaps_f: tuple[float, ...]
    gap_turn: float
    gaps_b: tuple[float, ...]
    scarcity: float = 1.0
    extra: tuple[float, ...] = ()
    warm_shape: float = 0.0
    warm_extra: float = 0.0
    patience: float = 0.0
    makes_room: float = 0.0
    budget_share: float = 0.0
    weight_delay: float = 0.0
    forward_bias: float = 0.0
    is_capped: bool = True

    def preferences(self, problem: Problem, bound: float, best: float | None) -> Preferences:
        """Turn the numbers into keys and caps for a problem; arguments as for ``Rule``."""
        key_f, key_b = _keys(self, problem)
        period = problem.period
        life = (key_b + problem.costs.backward_input - key_f) / period
        caps = _caps(self, problem, life)
        budgets = np.full(problem.placement.num_ranks, -1.0)
        if self.budget_share > 0 and best is not None:
            load = float(problem.loads.max())
            budgets = self.budget_share * (best - load) + load - problem.loads
        whole = float(key_b.max()) + problem.num_microbatches * period  # above any other key
        key_w = key_b + (self.weight_delay * period if self.weight_delay else whole)
        key_f = key_f + self.forward_bias * whole
        return Preferences(
            keys_of(problem, [key_f, key_b, key_w], period),
            caps,
            _warm_caps(self, problem, caps),
            self.patience,
            np.inf,
            self.makes_room,
            budgets,
        )


def passes(placement: Placement) -> Codes:
    """Number the passes: a new one begins where a rank would be visited a second time.

    >>> passes(Placement((0, 1, 1, 0))).tolist()
    [0, 0, 1, 1]
    """
    numbers, visited, current = [], set[int](), 0
    for rank in placement.stage_to_rank:
        if rank in visited:
            current, visited = current + 1, set()
        visited.add(rank)
        numbers.append(current)
    return np.array(numbers, dtype=np.int64)


def num_passes(placement: Placement) -> int:
    """Count the passes over the ranks."""
    return int(passes(placement)[-1]) + 1


class _Steps(NamedTuple):
    """What lies between the stages of a problem, in forward order.

    Attributes:
        least_f, least_b: least time from a stage to the next for F, and back for B.
        before, after: pass of the stage before, and of the stage after.
        is_turn: whether they differ.
        turns: number of each stage among those of its rank.
        unit: a third of a stage's share of the period.
    """

    least_f: Floats
    least_b: Floats
    before: Codes
    after: Codes
    is_turn: NDArray[np.bool_]
    turns: Codes
    unit: float


@lru_cache(maxsize=16)
def _steps(problem: Problem) -> _Steps:
    instance, numbers = instance_of(problem), passes(problem.placement)
    turns = np.empty_like(instance.stages)
    begins = np.repeat(instance.offsets[:-1], np.diff(instance.offsets))
    turns[instance.stages] = np.arange(len(turns)) - begins
    travel = instance.travel[:-1]
    return _Steps(
        instance.forward[:-1] + travel,
        instance.backward[1:] + travel,
        numbers[:-1],
        numbers[1:],
        numbers[:-1] != numbers[1:],
        turns,
        problem.period / (3 * (int(numbers[-1]) + 1)),
    )


def _keys(template: Template, problem: Problem) -> tuple[Floats, Floats]:
    steps = _steps(problem)
    hops_f, hops_b = np.array(template.hops_f), np.array(template.hops_b)
    f = _hops(hops_f[steps.after], steps.least_f, steps.unit)
    b = _hops(hops_b[steps.before], steps.least_b, steps.unit)
    if template.gaps_f:
        gaps_f, gaps_b = np.array([template.gaps_f, template.gaps_b])[
            :, steps.before * steps.is_turn
        ]
        f = np.where(steps.is_turn, steps.least_f + gaps_f * steps.unit, f)
        b = np.where(steps.is_turn, steps.least_b + gaps_b * steps.unit, b)
    key_f = np.append(0.0, np.cumsum(f))
    turn = key_f[-1] + problem.costs.forward[-1] + template.gap_turn * steps.unit
    return key_f, turn + np.append(0.0, np.cumsum(b[::-1]))[::-1]


def _hops(hops: Floats, least: Floats, unit: float) -> Floats:
    filling = np.maximum(least, 3 * unit - least) * -hops
    return np.maximum(least, np.where(hops >= 0, hops * unit, filling))


def _caps(template: Template, problem: Problem, life: Floats) -> Codes:
    """Share out each rank's memory in proportion to the time between F and B of its stages."""
    if not template.is_capped:
        return np.full(len(life), UNCAPPED)
    instance = instance_of(problem)
    wanted = np.bincount(instance.holders, weights=life * instance.held)
    # Finite, as a stage whose ops take no time wants none of it.
    room = np.full_like(wanted, UNCAPPED)
    np.divide(instance.limits, wanted, out=room, where=wanted > 0)
    room = np.minimum(room, UNCAPPED)
    ample = room * template.scarcity + 1 - template.scarcity
    scale = np.where(room > 1, ample, room**template.scarcity)[instance.holders]
    extra = np.zeros(len(life))
    if template.extra:
        turns = _steps(problem).turns
        extra = np.array(template.extra)[np.minimum(turns, len(template.extra) - 1)]
    caps = np.floor(np.minimum(life * scale, UNCAPPED) + extra + 1e-9)
    found: Codes = np.maximum(1, caps).astype(np.int64)
    return found


def _warm_caps(template: Template, problem: Problem, caps: Codes) -> Codes:
    """Shape the caps that hold before a rank's first B, as V-shaped schedules warm up."""
    instance, shape, extra = instance_of(problem), template.warm_shape, int(template.warm_extra)
    if shape <= 0 or not template.is_capped:
        return caps
    num_ranks = len(instance.limits)
    is_v = np.array_equal(instance.holders[num_ranks:], instance.holders[:num_ranks][::-1])
    if not is_v or num_ranks < 2 or not (instance.held > 0).all():
        warm: Codes = np.maximum(1, (caps * shape).astype(np.int64) + extra)
        return warm
    room = np.floor(np.minimum(instance.limits / instance.held[:num_ranks], UNCAPPED) + 1e-9)
    ranks = np.arange(num_ranks)
    depth = (ranks / (num_ranks - 1)) ** (1 / shape)
    deep = np.minimum(np.round(1 + (room / 2 - 1) * depth), ranks + 1 + extra)
    both = np.append(room - deep, (deep + extra)[::-1])
    is_limited = np.append(room, room[::-1]) < UNCAPPED
    warm = caps.copy()
    warm[is_limited] = np.maximum(1, both[is_limited]).astype(np.int64)
    return warm


def seeds(num_passes: int) -> Iterator[Template]:
    """Yield templates to start from: the hops of known schedules, with and without gaps."""
    turns = num_passes - 1
    up = [k % 2 == 1 for k in range(num_passes)]
    for turn, gap, patience, scarcity, flip in product(
        (0.0, 1.0, 3.0), (0.0, 1.0, 2.0), (0.0, 0.5), (1.0, 0.5), (False, True)
    ):
        filling = tuple(-1.0 if going_up is flip else 0.0 for going_up in up)
        least = tuple(0.0 if going_up is flip else -1.0 for going_up in up)
        yield Template(
            filling, least, (0.0,) * turns, turn, (gap,) * turns, scarcity, patience=patience
        )
    for hops_f, hops_b in _known_hops(up):
        for gap, extra, patience in product((0.0, 1.0), (0.0, 1.0), (0.0, 0.5)):
            gaps = (gap,) * turns
            more = (extra,) * num_passes
            yield Template(hops_f, hops_b, gaps, 0.0, gaps, extra=more, patience=patience)
        none = (0.0,) * turns
        yield Template(hops_f, hops_b, none, 0.0, none, is_capped=False, patience=0.5)
        half = (0.5,) * num_passes
        yield Template(hops_f, hops_b, none, 0.0, none, extra=half, patience=0.5, forward_bias=-1.0)


def _known_hops(up: Sequence[bool]) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    even = [(0.0, 0.0), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0), (1.5, 1.5)]
    for f, b in even:
        yield (f,) * len(up), (b,) * len(up)
    one_up = tuple(1.0 if going_up else 2.0 for going_up in up)
    two_up = tuple(2.0 if going_up else 1.0 for going_up in up)
    yield one_up, two_up
    yield two_up, one_up


def with_warm_up(templates: Iterator[Template]) -> Iterator[Template]:
    """Yield each template, and capped ones also with a V-shaped warm-up."""
    for template in templates:
        yield template
        if template.is_capped:
            yield replace(template, warm_shape=1.5)
