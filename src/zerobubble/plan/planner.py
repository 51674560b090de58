"""How is one choice of microbatch size and placement started, and how are the best improved?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from zerobubble.costs import Floats
from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value
from zerobubble.ir import Placement
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.moving import improve, refine
from zerobubble.plan.pace import Pace
from zerobubble.plan.partition import partition
from zerobubble.plan.placing import Placements, placements_to_try
from zerobubble.plan.scheduling import known_candidates, search_schedule
from zerobubble.plan.task import Candidate, Task, better, judge
from zerobubble.profile import stage_costs
from zerobubble.schedules import recipe
from zerobubble.schedules.registry import parse_spec

# So many of the best starts are improved.
_NUM_IMPROVED = 4
# So many of the best are given more effort, each search of which takes long.
_NUM_DEEPENED = 2
# With offload and recompute, which take longer: so many choices that fit without, and as many that
# do not.
_NUM_RELIEVED = 2

Choice = tuple[int, Placement]


@dataclass(frozen=True, eq=False)
class Planner:
    """How one choice of microbatch size and placement is started and improved."""

    task: Task
    schedule: str | None

    def placements(self, asked: Placements | None) -> list[Placement]:
        """List the placements to try."""
        task = self.task
        if self.schedule is None:
            return placements_to_try(task.profile.num_layers, task.num_ranks, asked)
        if not isinstance(self.schedule, str):
            raise UsageError(
                "schedule must be the name of a registered schedule, such as zb-h1, not "
                f"{show_value(self.schedule)}"
            )
        name, parameters = parse_spec(self.schedule)
        place = recipe(name).place(task.num_ranks, **parameters)
        if asked and place not in placements_to_try(task.profile.num_layers, task.num_ranks, asked):
            raise UsageError(f"{self.schedule} has placement {place}: leave out the placement")
        return placements_to_try(task.profile.num_layers, task.num_ranks, place)

    @property
    def plain(self) -> "Planner":
        """The same without offload and recompute."""
        return replace(self, task=replace(self.task, offload="off", recompute="off"))

    def relieve(
        self, starts: dict[Choice, Candidate], choices: Sequence[Choice]
    ) -> dict[Choice, Candidate]:
        """Start anew with offload and recompute where that promises most.

        Args:
            starts: without either, for the choices that fit so.
            choices: all of them; of those that do not fit, the first ones with the least work do.
        """
        fitting = sorted((c for c in choices if c in starts), key=lambda c: merit(starts[c]))
        others = sorted((c for c in choices if c not in starts), key=self._least_ms)
        relieved = [(choice, self.start(*choice)) for choice in fitting[:_NUM_RELIEVED]]
        tried = ((choice, self.start(*choice)) for choice in others)
        relieved += islice((pair for pair in tried if pair[1] is not None), _NUM_RELIEVED)
        best = {choice: better(starts.get(choice), start) for choice, start in relieved}
        return starts | {choice: start for choice, start in best.items() if start is not None}

    def _least_ms(self, choice: Choice) -> float:
        """Give a time that no step of a choice can beat: the mean work of a rank."""
        task, (size, _) = self.task, choice
        return float(task.tables(size).least_work[0, -1]) * task.num_microbatches(size)

    def start(self, microbatch_size: int, placement: Placement) -> Candidate | None:
        """Balance the layers and find the best schedule for that, if any fits."""
        tables = self.task.tables(microbatch_size)
        sizes = [tables.least_bytes]
        if self.task.is_relieved:  # what just fits may leave no room for copies
            sizes.append(tables.plain_bytes)
        starts = (self._start_within(size, microbatch_size, placement) for size in sizes)
        return next((start for start in starts if start is not None), None)

    def _start_within(
        self, stage_bytes: Floats, microbatch_size: int, placement: Placement
    ) -> Candidate | None:
        task = self.task
        found = partition(
            [layer.compute_ms for layer in task.profile.at(microbatch_size)],
            placement.num_stages,
            placement,
            stage_bytes,
            task.memory,
        )
        if found is None:
            return None
        parts = (microbatch_size, found.layers_per_stage, placement)
        best = self.find(*parts)
        if self.schedule is None:
            for candidate in known_candidates(task, *parts):
                best = better(best, candidate)
        return best

    def find(
        self, microbatch_size: int, layers_per_stage: tuple[int, ...], placement: Placement
    ) -> Candidate | None:
        """Find the best schedule of a partition, or build the one asked for."""
        task = self.task
        if self.schedule is None:
            return search_schedule(task, microbatch_size, layers_per_stage, placement)
        name, parameters = parse_spec(self.schedule)
        layers = layers_of_stages(layers_per_stage)
        costs = stage_costs(task.profile, microbatch_size, layers, placement)
        count = task.num_microbatches(microbatch_size)
        built = recipe(name).build(task.num_ranks, count, costs, **parameters)
        return judge(task, microbatch_size, layers_per_stage, Pace(built))

    def starts(self, choices: Sequence[Choice]) -> dict[Choice, Candidate]:
        """Start every choice that fits."""
        found = {choice: self.start(*choice) for choice in choices}
        return {choice: start for choice, start in found.items() if start is not None}

    def improve_best(self, starts: Mapping[Choice, Candidate]) -> list[Candidate]:
        """Move layers and search schedules in turn, for the best starts; give all, best first."""
        ranked = sorted(starts.values(), key=merit)
        improved = [improve(self.task, start, self.find_again) for start in ranked[:_NUM_IMPROVED]]
        found = sorted([*improved, *ranked[_NUM_IMPROVED:]], key=merit)
        return [refine(self.task, best, self.find_again) for best in found[:1]] + found[1:]

    def with_effort(self, effort: str) -> "Planner":
        """Plan the same with another effort of every search."""
        return replace(self, task=replace(self.task, effort=effort))

    def deepen(
        self, starts: dict[Choice, Candidate], found: Sequence[Candidate]
    ) -> list[Candidate]:
        """Spend this effort on the best of what less has found; the first is never worse.

        Args:
            starts: of every choice; those of the best are searched again, and replaced if better.
            found: for every choice, best first.
        """
        deeper = []
        for candidate in found[:_NUM_DEEPENED]:
            choice = candidate.microbatch_size, candidate.placement
            start, best = starts[choice], better(candidate, self.find_again(candidate))
            if start.layers_per_stage != candidate.layers_per_stage:
                starts[choice] = better(start, self.find_again(start)) or start
            best = better(best, starts[choice]) or candidate
            deeper.append(improve(self.task, best, self.find_again))
        ranked = sorted([*deeper, *found[_NUM_DEEPENED:]], key=merit)
        return [refine(self.task, best, self.find_again) for best in ranked[:1]] + ranked[1:]

    def find_again(self, moved: Candidate) -> Candidate | None:
        """Find the best schedule after layers have moved."""
        return self.find(moved.microbatch_size, moved.layers_per_stage, moved.placement)


def merit(candidate: Candidate) -> tuple[float, float]:
    """Rank by the memory that is not there, then by the time of a step."""
    return candidate.excess_bytes, candidate.step_ms
