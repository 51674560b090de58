"""What is a single way to meet a memory limit by offload and recompute, and what comes of it?

The search for orders of F, B and W knows no copies. So it is given a relaxed problem, in which a
stage that is offloaded or run again holds little between F and B; then W are pulled forward where
copies need the room, and O, L and R are put into the order that was found.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from zerobubble.copies import with_copies, with_recompute, without_copies
from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Flags, Kind, Placement, Schedule
from zerobubble.search.bounds import Bound, lower_bound
from zerobubble.search.effort import Effort
from zerobubble.search.engine import search_all
from zerobubble.search.problem import Objective
from zerobubble.search.relief import Decision, Relief, smallest_relieved_memory
from zerobubble.search.relief.bounds import relieved_bound
from zerobubble.search.relief.making_room import make_room
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import violations

# Steps of a climb over ways: factors of ``share``, values of ``spare``.
_STEPS, _SPARES = (0.5, 0.8, 1.25, 2.0), (1.0, 2.0, 4.0)
# Of a shorter problem, enough to show its rhythm.
_MICROBATCHES_A_RANK = 3


@dataclass(frozen=True, eq=False)
class Case:
    """One placement and its costs, and what is asked for.

    Attributes:
        is_light: whether the costs are those with light recompute.
        bound: an objective that no schedule beats.
    """

    costs: Costs
    placement: Placement
    num_microbatches: int
    limits: Floats
    objective: Objective
    relief: Relief
    is_light: bool
    bound: float = 0.0

    def value_of(self, timeline: Timeline) -> float:
        """Give the objective of a timeline."""
        return timeline.span if self.objective == "span" else timeline.makespan

    def fits(self, decision: Decision) -> bool:
        """Say whether any schedule fits into the limits if this is decided."""
        needed = smallest_relieved_memory(self.costs, self.placement, decision.rest(self.costs))
        return bool((needed <= self.limits * (1 + TOLERANCE)).all())

    def shorter(self) -> "Case":
        """Give the same case with few microbatches."""
        few = min(self.num_microbatches, _MICROBATCHES_A_RANK * self.placement.num_ranks)
        return replace(self, num_microbatches=few)

    def bound_within(self, time: float) -> Bound:
        """Bound the objective of all schedules that take no longer than a time."""
        problem = (self.costs, self.placement, self.num_microbatches, self.limits)
        return relieved_bound(*problem, self.objective, self.relief, time)

    def plain_bound(self) -> float:
        """Bound the objective of schedules that move nothing; infinite if none fits."""
        problem = (self.costs, self.placement, self.num_microbatches, self.limits)
        try:
            return lower_bound(*problem, self.objective).value
        except UsageError:
            return np.inf

    def decisions(self, steps: int) -> Iterator[Decision]:
        """Yield what may be decided: the stages that live longest are the first of the model."""
        num_stages = self.placement.num_stages
        none, every = np.zeros(num_stages, bool), np.ones(num_stages, bool)
        if not self.relief.is_chosen:
            yield Decision(every, none) if self.relief.may_offload else Decision(none, every)
            return
        for count in sorted({-(-step * num_stages // steps) for step in range(1, steps + 1)}):
            first = np.arange(num_stages) < count
            if self.relief.may_offload:
                yield Decision(first, none)
            if self.relief.may_run_again:
                yield Decision(none, first)
            if self.relief.may_offload and self.relief.may_run_again and not first.all():
                yield Decision(first, ~first)
                yield Decision(~first, first)

    def admitted(self, schedule: Schedule) -> Timeline | None:
        """Simulate a schedule as it is or with other copies; None if neither is as asked for."""
        forms = [schedule]
        if self.relief.may_offload:
            with suppress(ScheduleError):
                plain = without_copies(schedule)
                moved = with_copies(plain, self.costs, memory=self.limits)
                forms.append(moved.renamed("search"))
        timelines = [simulate(form, self.costs) for form in forms if self._admits(form)]
        return min(timelines, key=self.value_of, default=None)

    def _admits(self, schedule: Schedule) -> bool:
        """Say whether a schedule fits into the limits, and moves what is asked for and no more."""
        moved, again = (schedule.has(kind).any(axis=1) for kind in (Kind.O, Kind.R))
        if (moved.any() and not self.relief.may_offload) or (
            again.any() and not self.relief.may_run_again
        ):
            return False
        if not self.relief.is_chosen and not (moved if self.relief.may_offload else again).all():
            return False
        return not violations(schedule, self.costs, self.limits)


@dataclass(frozen=True)
class Way:
    """A way to meet the limits of a case.

    Attributes:
        decision: which stages are offloaded or run again.
        share: the part of an offloaded activation that the relaxed problem counts: the smaller,
            the more microbatches are between F and B at once.
        spare: how many activations of a stage W leaves room for, for copies that are under way.
    """

    decision: Decision
    share: float = 0.25
    spare: float = 2.0

    @property
    def knobs(self) -> tuple[float, float]:
        """What a climb changes."""
        return self.share, self.spare

    def neighbours(self) -> Iterator["Way"]:
        """Yield the ways a step away."""
        if self.decision.is_offloaded.any():
            for factor in _STEPS:
                yield replace(self, share=min(1.0, self.share * factor))
        for spare in _SPARES:
            if spare != self.spare:
                yield replace(self, spare=spare)

    def try_on(self, case: Case, effort: Effort) -> Timeline | None:
        """Search the relaxed problem, and make a schedule for the case of what was found, if any.

        Raises nothing: where what is decided does not fit into the limits there is none.
        """
        if not case.fits(self.decision):
            return None
        relaxed = self.decision.relaxed(case.costs, self.share)
        needed = np.bincount(case.placement.stage_to_rank, weights=relaxed.activation)
        limits = np.maximum(case.limits - self._freed(case, self.decision.is_run_again), needed)
        found = search_all(
            {case.placement: relaxed}, case.num_microbatches, limits, case.objective, effort
        )
        return self.fitted(case, found.schedule)

    def fitted(self, case: Case, schedule: Schedule) -> Timeline | None:
        """Put O, L and R into an order of F, B and W; None if it does not fit into the limits."""
        decision = self.decision
        moved = decision.is_offloaded
        spare = self.spare * self._freed(case, moved | decision.is_run_again)
        roomy = make_room(schedule, case.costs, decision, case.limits, spare)
        if roomy is None:
            return None
        placed = with_recompute(roomy, decision.is_run_again)
        if moved.any():
            try:
                placed = with_copies(placed, case.costs, moved, case.limits)
            except ScheduleError:
                return None
        return simulate(placed.renamed("search"), case.costs)

    def _freed(self, case: Case, is_counted: Flags) -> Floats:
        """Give the most that O or R of one of these stages saves on every rank."""
        freed = is_counted * (case.costs.activation - self.decision.rest(case.costs))
        most = np.zeros(case.placement.num_ranks)
        np.maximum.at(most, list(case.placement.stage_to_rank), freed)
        return most


def alone(case: Case) -> Timeline | None:
    """Run every microbatch alone, with as little memory as can be."""
    place, relief, costs = case.placement, case.relief, case.costs
    none = np.zeros(place.num_stages, bool)
    offloaded = costs.activation - costs.activation_offloaded
    is_better = offloaded <= costs.activation_input
    moves = ~none if not relief.may_run_again else is_better & relief.may_offload
    decision = Decision(moves & relief.may_offload, ~moves & relief.may_run_again)
    orders = []
    for rank in range(place.num_ranks):
        down = np.array(place.stages_of(rank))
        up = np.stack([Kind.B * place.num_stages + down, Kind.W * place.num_stages + down], axis=1)
        rows = np.concatenate([down, up[::-1].reshape(-1)])
        each = np.arange(case.num_microbatches)[:, None]
        orders.append((rows * case.num_microbatches + each).reshape(-1))
    schedule = Schedule("search", place, case.num_microbatches, tuple(orders))
    return Way(decision).fitted(case, schedule)
