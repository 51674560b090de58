"""What is to be planned, and how is one way of doing it judged?"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement, Schedule
from zerobubble.plan.cuts import interval_sums, sums_of_ranks
from zerobubble.plan.forecast import costs_of, guessing_ranks, step_ms
from zerobubble.plan.pace import Pace
from zerobubble.profile import LayerCosts, Profile
from zerobubble.search.problem import Objective
from zerobubble.search.relief import Offload, Recompute

# A rank may exceed its memory by this share, as in ``verify``.
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Tables:
    """What a stage with layers ``i`` to ``j - 1`` takes, at ``[i, j]``, for one microbatch size.

    Attributes:
        work: time of F, B and W for one microbatch.
        least_work: likewise, the shorter of a split and a plain backward.
        optimizer: time of the optimizer's step on a rank that guesses the gradient norm.
        plain_optimizer: likewise on one that does not.
        weights: bytes that are there all the time.
        activations: bytes of one microbatch.
        least_activations: bytes of one microbatch that no offload and no recompute can free.
    """

    work: Floats
    least_work: Floats
    optimizer: Floats
    plain_optimizer: Floats
    weights: Floats
    activations: Floats
    least_activations: Floats

    @cached_property
    def plain_bytes(self) -> Floats:
        """Bytes within which a schedule runs for sure: one microbatch after the other."""
        return self.weights + self.activations

    @cached_property
    def least_bytes(self) -> Floats:
        """Bytes without which no schedule runs."""
        return self.weights + self.least_activations


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be planned.

    Attributes:
        profile: of the model's layers.
        num_ranks: p.
        batch_size: number of samples in a step.
        memory: bytes of every rank, infinite where there is no limit.
        validate: how the optimizer steps: ``post`` or ``sync``.
        effort: of every search for a schedule.
        offload: whether activations may leave the device: ``off``, ``auto`` or ``all``.
        recompute: whether forwards may run again: ``off``, ``auto`` or ``full``.
    """

    profile: Profile
    num_ranks: int
    batch_size: int
    memory: Floats
    validate: str
    effort: str
    offload: Offload = "off"
    recompute: Recompute = "off"

    @property
    def is_relieved(self) -> bool:
        """Whether activations may leave the device or be computed again."""
        return (self.offload, self.recompute) != ("off", "off")

    @property
    def objective(self) -> Objective:
        """What a search for a schedule has to make short."""
        return "span" if self.validate == "post" else "makespan"

    @cached_property
    def _tables(self) -> dict[int, Tables]:
        return {}

    def tables(self, microbatch_size: int) -> Tables:
        """Tabulate every possible stage."""
        if microbatch_size not in self._tables:
            layers = self.profile.at(microbatch_size)
            self._tables[microbatch_size] = _tables(layers, self.is_relieved)
        return self._tables[microbatch_size]

    def num_microbatches(self, microbatch_size: int) -> int:
        """Give the number of microbatches in a step."""
        return self.batch_size // microbatch_size

    def sums(self, table: Floats, layers_per_stage: Sequence[int], placement: Placement) -> Floats:
        """Sum a table over the stages of every rank."""
        return sums_of_ranks(table, layers_per_stage, placement.stage_to_rank, self.num_ranks)

    def optimizer_ms(
        self, microbatch_size: int, layers_per_stage: Sequence[int], placement: Placement
    ) -> Floats:
        """Give the time of the optimizer's step on every rank."""
        tables, guesses = self.tables(microbatch_size), guessing_ranks(placement, self.validate)
        guessing = self.sums(tables.optimizer, layers_per_stage, placement)
        plain = self.sums(tables.plain_optimizer, layers_per_stage, placement)
        return np.where(guesses > 0, guessing, plain)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A partition and a schedule, and how good they are together.

    Attributes:
        microbatch_size: number of samples in a microbatch.
        layers_per_stage: how many layers each stage has.
        schedule: of the stages.
        costs: of the stages, as the schedule runs them.
        excess_bytes: how much too much memory a rank needs at most.
        step_ms: time from step to step.
        period_sum_ms: sum over ranks of span and optimizer time, to tell equal steps apart.
        busiest: rank with the longest of these.
    """

    microbatch_size: int
    layers_per_stage: tuple[int, ...]
    schedule: Schedule
    costs: Costs
    excess_bytes: float
    step_ms: float
    period_sum_ms: float
    busiest: int

    @property
    def placement(self) -> Placement:
        """Rank of every stage."""
        return self.schedule.placement

    @property
    def fits(self) -> bool:
        """Whether every rank has memory enough."""
        return self.excess_bytes <= 0

    def is_better(self, other: "Candidate") -> bool:
        """Say whether it needs less memory that is not there, else time, else idle time."""
        pairs = (
            (self.excess_bytes, other.excess_bytes),
            (self.step_ms, other.step_ms),
            (self.period_sum_ms, other.period_sum_ms),
        )
        for mine, its in pairs:
            if abs(mine - its) > TOLERANCE * its:
                return mine < its
        return False


def _tables(layers: Sequence[LayerCosts], is_relieved: bool) -> Tables:
    saved = np.array([layer.saved_input_bytes for layer in layers])
    inputs = np.array([layer.input_bytes for layer in layers])
    activations = interval_sums(np.array([x.activation_bytes for x in layers]) + saved)
    activations[:-1] += (inputs - saved)[:, None]
    least = activations
    if is_relieved:  # the input of a stage stays
        least = np.where(np.isfinite(activations), np.append(inputs, 0.0)[:, None], activations)
    return Tables(
        interval_sums([layer.compute_ms for layer in layers]),
        interval_sums([_least_work(layer) for layer in layers]),
        interval_sums([layer.optimizer_step_ms(True) for layer in layers]),
        interval_sums([layer.optimizer_step_ms(False) for layer in layers]),
        interval_sums([layer.weight_bytes for layer in layers]),
        activations,
        least,
    )


def _least_work(layer: LayerCosts) -> float:
    backward = layer.backward_input_ms + layer.backward_weight_ms
    forward = min(layer.forward_ms, layer.plain_forward_ms)
    return forward + min(backward, layer.plain_backward_ms)


def judge(
    task: Task, microbatch_size: int, layers_per_stage: tuple[int, ...], pace: Pace
) -> Candidate:
    """Simulate a schedule with the stages of a partition."""
    schedule, tables = pace.schedule, task.tables(microbatch_size)
    costs = costs_of(task.profile, microbatch_size, layers_per_stage, schedule)
    paced = pace(costs)
    optimizer = task.optimizer_ms(microbatch_size, layers_per_stage, schedule.placement)
    held = task.sums(tables.weights, layers_per_stage, schedule.placement) + paced.peaks
    over = np.where(held > task.memory * (1 + TOLERANCE), held - task.memory, 0.0)
    periods = paced.spans + optimizer
    overhead = task.profile.step_overhead_ms
    return Candidate(
        microbatch_size,
        layers_per_stage,
        schedule,
        costs,
        float(over.max()),
        step_ms(paced.spans, paced.makespan, optimizer, task.validate, overhead),
        float(periods.sum()),
        int(periods.argmax()),
    )


def better(one: Candidate | None, other: Candidate | None) -> Candidate | None:
    """Give the better of two, the first of equals."""
    if one is None or other is None:
        return one or other
    return other if other.is_better(one) else one
