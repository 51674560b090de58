"""Which partition is the best where the stages of a rank must share its memory?

The shortest time of the longest stage that can be reached is found by bisection. For each time,
layers are first moved away from ranks that hold too much. If that ends before all fit, a
depth-first search cuts stage after stage. Its state is the stage, its first layer and what the
ranks that get more stages already hold. What failed once fails with as much or more in memory,
which cuts most of the tree; a limit on the steps cuts the rest, and then nothing is proved.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Floats
from zerobubble.plan.cuts import longest_stage, moves, sums_of_ranks

# Steps of all searches for one partition: about a second.
WORK = 20_000
# Of one state, so many failures are kept to compare with.
_MOST_FAILURES = 32
# Limits are finite here: a stage that is too long counts as infinitely large.
_LARGEST = 1e300


class Packed(NamedTuple):
    """What a search has found: None for no partition, proved or not."""

    layers_per_stage: tuple[int, ...] | None
    is_proved: bool


def pack(
    times: Floats,
    stage_bytes: Floats,
    holders: Sequence[int],
    limits: Floats,
    least: float,
    start: tuple[int, ...],
    work: int = WORK,
) -> Packed:
    """Find the partition within the limits whose longest stage is shortest.

    Args:
        times: of a stage with layers ``i`` to ``j - 1`` at ``[i, j]``.
        stage_bytes: likewise its memory.
        holders: rank of every stage.
        limits: memory of every rank.
        least: a time that the longest stage cannot be below.
        start: a partition with that time, which exceeds the limits.
        work: how many steps all searches may take together; half of them are for the first.
    """
    thresholds = np.unique(times[np.isfinite(times) & (times >= least * (1 - 1e-12))]).tolist()
    steps = max(1, work // 2 // len(thresholds).bit_length())
    limits = np.minimum(limits, _LARGEST)

    def find(threshold: float, steps: int) -> Packed:
        allowed = np.where(times <= threshold * (1 + 1e-12), stage_bytes, np.inf)
        relieved = relieve(start, allowed, holders, limits)
        if relieved is not None:
            return Packed(relieved, True)
        return _Search(allowed, holders, limits, steps).run()

    best = find(np.inf, work // 2)
    if best.layers_per_stage is None:
        return best
    low, is_proved = 0, True
    high = thresholds.index(longest_stage(times, best.layers_per_stage))
    while low < high:
        middle = (low + high) // 2
        found = find(thresholds[middle], steps)
        if found.layers_per_stage is None:
            low, is_proved = middle + 1, is_proved and found.is_proved
        else:
            best = found
            high = min(middle, thresholds.index(longest_stage(times, found.layers_per_stage)))
    return Packed(best.layers_per_stage, is_proved)


def relieve(
    layers_per_stage: tuple[int, ...], stage_bytes: Floats, holders: Sequence[int], limits: Floats
) -> tuple[int, ...] | None:
    """Move layers away from the rank that exceeds its limit most until all fit, or none helps."""
    num_ranks = len(limits)

    def excess(lengths: tuple[int, ...]) -> tuple[float, float]:
        over = np.maximum(sums_of_ranks(stage_bytes, lengths, holders, num_ranks) - limits, 0.0)
        return float(over.max()), float(over.sum())

    best = excess(layers_per_stage)
    while best[0] > 0:
        over = sums_of_ranks(stage_bytes, layers_per_stage, holders, num_ranks) - limits
        givers = [s for s, rank in enumerate(holders) if over[rank] == over.max()]
        options = moves(layers_per_stage, givers, range(len(holders)))
        found = min(((excess(option), option) for option in options), default=None)
        if found is None or found[0] >= best:
            return None
        best, layers_per_stage = found
    return layers_per_stage


class _Search:
    """Whether there is a partition of stages that may have infinite sizes within limits."""

    def __init__(
        self,
        stage_bytes: Floats,
        holders: Sequence[int],
        limits: Floats,
        work: int,
    ) -> None:
        self.holders, self.limits, self.bytes = holders, limits, stage_bytes
        self.num_layers, self.num_stages = len(stage_bytes) - 1, len(holders)
        alone = limits[list(holders)][:, None, None]
        self.allowed = (stage_bytes[None] <= alone) & np.isfinite(stage_bytes)[None]
        self.can_end = self._reachable()
        self.work = work
        self.failed: dict[tuple[int, int], list[Floats]] = {}
        last = {rank: stage for stage, rank in enumerate(holders)}
        self.open = [sorted(r for r in last if last[r] >= stage) for stage in range(len(holders))]
        self.left = [sum(h == r for h in holders[s:]) for s, r in enumerate(holders)]

    def _reachable(self) -> Floats:
        """Tabulate by stage and layer whether the rest can be cut if stages had the ranks alone."""
        can_end = np.zeros((self.num_stages + 1, self.num_layers + 1), dtype=bool)
        can_end[-1, -1] = True
        for stage in reversed(range(self.num_stages)):
            can_end[stage] = (self.allowed[stage] & can_end[stage + 1][None, :]).any(axis=1)
        return can_end

    def run(self) -> Packed:
        """Search, without recursion, as there may be more stages than Python allows calls."""
        if not self.can_end[0, 0]:
            return Packed(None, True)
        held = np.zeros(len(self.limits))
        path = [0]
        choices = [self._choices(0, 0, held)]
        while choices:
            stage = len(choices) - 1
            i, rank = path[stage], self.holders[stage]
            if len(path) > stage + 1:
                held[rank] -= self.bytes[i, path.pop()]
            j = next(choices[-1], None)
            if j is None:
                self._note_failure(stage, i, held)
                choices.pop()
                continue
            self.work -= 1
            if self.work < 0:
                return Packed(None, False)
            held[rank] += self.bytes[i, j]
            path.append(j)
            if stage + 1 == self.num_stages:
                return Packed(tuple(np.diff(path).tolist()), True)
            if not self._has_failed(stage + 1, j, held):
                choices.append(self._choices(stage + 1, j, held))
        return Packed(None, True)

    def _choices(self, stage: int, i: int, held: Floats) -> Iterator[int]:
        """Yield where the stage may end: first where it takes an even share of what is free."""
        rank = self.holders[stage]
        free = self.limits[rank] - held[rank]
        sizes = self.bytes[i]
        ends = np.flatnonzero(self.allowed[stage, i] & self.can_end[stage + 1] & (sizes <= free))
        share = free / self.left[stage] if np.isfinite(free) else 0.0
        return iter(ends[np.argsort(np.abs(sizes[ends] - share), kind="stable")].tolist())

    def _note_failure(self, stage: int, i: int, held: Floats) -> None:
        failures = self.failed.setdefault((stage, i), [])
        if len(failures) < _MOST_FAILURES:
            failures.append(held[self.open[stage]])

    def _has_failed(self, stage: int, i: int, held: Floats) -> bool:
        known = self.failed.get((stage, i))
        return known is not None and bool((np.array(known) <= held[self.open[stage]]).all(1).any())
