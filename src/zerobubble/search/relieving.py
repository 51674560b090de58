"""How is a memory limit met by offload and recompute, decided together with the schedule?

The search for orders of F, B and W knows no copies. So it is given relaxed problems, in which a
stage that is offloaded or run again holds little between F and B; then W are pulled forward where
copies need the room, and O, L and R are put into the order that was found. Which stages they are,
how much room is left for what is under way, and how many microbatches are under way at once, is
tried out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zerobubble.copies import with_copies, with_recompute
from zerobubble.costs import Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Placement, Schedule
from zerobubble.search.effort import Effort
from zerobubble.search.engine import search_all
from zerobubble.search.making_room import make_room
from zerobubble.search.problem import Objective
from zerobubble.search.relief import Decision, Relief, smallest_relieved_memory
from zerobubble.search.limits import TOLERANCE
from zerobubble.simulate import Timeline, simulate


@dataclass(frozen=True, eq=False)
class Case:
    """One placement and its costs, and what is asked for.

    Attributes:
        is_light: whether the costs are those with light recompute.
    """

    costs: Costs
    placement: Placement
    num_microbatches: int
    limits: Floats
    objective: Objective
    relief: Relief
    is_light: bool

    def value_of(self, timeline: Timeline) -> float:
        """Give the objective of a timeline."""
        return timeline.span if self.objective == "span" else timeline.makespan

    def fits(self, decision: Decision) -> bool:
        """Say whether any schedule fits into the limits if this is decided."""
        needed = smallest_relieved_memory(self.costs, self.placement, decision.rest(self.costs))
        return bool((needed <= self.limits * (1 + TOLERANCE)).all())

    def decisions(self) -> Iterator[Decision]:
        """Yield what may be decided: the stages that live longest are the first of the model."""
        num_stages = self.placement.num_stages
        none, every = np.zeros(num_stages, bool), np.ones(num_stages, bool)
        if not self.relief.is_chosen:
            yield Decision(every, none) if self.relief.may_offload else Decision(none, every)
            return
        firsts = [np.arange(num_stages) < count for count in self._counts()]
        for first in firsts:
            if self.relief.may_offload:
                yield Decision(first, none)
            if self.relief.may_run_again:
                yield Decision(none, first)
            if self.relief.may_offload and self.relief.may_run_again and not first.all():
                yield Decision(first, ~first)
                yield Decision(~first, first)

    def _counts(self) -> list[int]:
        steps = max(4, min(8, self.placement.num_stages // self.placement.num_ranks))
        counts = np.ceil(np.arange(1, steps + 1) * self.placement.num_stages / steps)
        return sorted(set(counts.astype(int).tolist()))


class Trial(NamedTuple):
    """What is tried for a case.

    Attributes:
        share: the part of an offloaded activation that the relaxed problem counts.
        spare: how many activations of a stage are under way.
    """

    decision: Decision
    share: float
    spare: float

    def order(self, case: Case, effort: Effort) -> Schedule | None:
        """Search the relaxed problem; None if its limits leave no room."""
        relaxed = self.decision.relaxed(case.costs, self.share)
        needed = np.bincount(case.placement.stage_to_rank, weights=relaxed.activation)
        limits = np.maximum(case.limits - self._room(case), needed)
        if (limits > case.limits * (1 + TOLERANCE)).any() and self.share == 0:
            return None
        found = search_all(
            {case.placement: relaxed}, case.num_microbatches, limits, case.objective, effort
        )
        return found.schedule

    def fitted(self, case: Case, schedule: Schedule) -> Timeline | None:
        """Put O, L and R into an order of F, B and W; None if it cannot fit into the limits."""
        costs, decision = case.costs, self.decision
        roomy = make_room(schedule, costs, decision, case.limits, self._room(case))
        if roomy is None:
            return None
        again = with_recompute(roomy, decision.is_run_again)
        if not decision.is_offloaded.any():
            return simulate(again, costs)
        try:
            moved = with_copies(again, costs, decision.is_offloaded, case.limits)
        except ScheduleError:
            return None
        return simulate(moved, costs)

    def _room(self, case: Case) -> Floats:
        """Give what every rank leaves free for what is under way."""
        freed = case.costs.activation - self.decision.rest(case.costs)
        room = np.zeros(case.placement.num_ranks)
        np.maximum.at(room, list(case.placement.stage_to_rank), freed)
        return self.spare * room
