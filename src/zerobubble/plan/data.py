"""What is decided before a model is trained in a pipeline, and what is expected of it?"""

from dataclasses import dataclass

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Schedule


@dataclass(frozen=True)
class Forecast:
    """What a plan expects; times in ms, sizes in bytes.

    Attributes:
        step_ms: time from step to step.
        span_ms: the part of it that the ops take on the rank that is busy for the longest.
        makespan_ms: likewise from the first op on any rank to the last.
        bubble: share of ``span_ms``, or of ``makespan_ms`` with a barrier, that is not work.
        bound_ms: no schedule with this partition, placement and memory has a shorter step.
        binding: what forbids one, in words.
        optimizer_ms: time of the optimizer's step on every rank.
        overhead_ms: what else a step takes.
        weight_bytes: parameters, gradients and optimizer state of every rank.
        activation_bytes: largest sum of activations on every rank.
    """

    step_ms: float
    span_ms: float
    makespan_ms: float
    bubble: float
    bound_ms: float
    binding: str
    optimizer_ms: tuple[float, ...]
    overhead_ms: float
    weight_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How far above the bound a step is, as a share of the bound."""
        return max(0.0, self.step_ms / self.bound_ms - 1) if self.bound_ms > 0 else 0.0

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """All that every rank holds at its peak."""
        pairs = zip(self.weight_bytes, self.activation_bytes, strict=True)
        return tuple(weights + activations for weights, activations in pairs)


@dataclass(frozen=True, eq=False)
class Plan:
    """A model's partition, the schedule of its stages, and what to expect.

    Attributes:
        model: name of the model that it is for.
        layer_names: of every layer, in order; a model with other ones is refused.
        layers_per_stage: how many consecutive layers each stage has.
        schedule: placement and order of the ops, for a fixed number of microbatches.
        microbatch_size: number of samples in a microbatch.
        costs: of the stages, times in ms and activations in bytes.
        validate: how the optimizer steps: ``post`` or ``sync``.
        memory_bytes: limit of every rank; None if there was none.
        forecast: what is expected of a step.
        reasons: in words, what makes the plan as fast as it is and what would make it faster.

    Raises:
        UsageError: the parts do not fit each other.
    """

    model: str
    layer_names: tuple[str, ...]
    layers_per_stage: tuple[int, ...]
    schedule: Schedule
    microbatch_size: int
    costs: Costs
    validate: str
    memory_bytes: tuple[float, ...] | None
    forecast: Forecast
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        num_stages = self.schedule.num_stages
        self.costs.require_stages(num_stages, "the schedule of the plan")
        if len(self.layers_per_stage) != num_stages or min(self.layers_per_stage) < 1:
            raise UsageError(
                f"plan: layers per stage {list(self.layers_per_stage)} must be {num_stages} "
                "positive numbers, one for each stage"
            )
        if sum(self.layers_per_stage) != len(self.layer_names):
            raise UsageError(
                f"plan: layers per stage {list(self.layers_per_stage)} add up to "
                f"{sum(self.layers_per_stage)}, but there are {len(self.layer_names)} layers"
            )
        if self.microbatch_size < 1:
            raise UsageError(f"plan: microbatch size must be at least 1: {self.microbatch_size}")
        if self.validate not in ("post", "sync"):
            raise UsageError(f"plan: validate must be 'post' or 'sync', not {self.validate!r}")

    @property
    def batch_size(self) -> int:
        """Number of samples in a step."""
        return self.microbatch_size * self.schedule.num_microbatches
