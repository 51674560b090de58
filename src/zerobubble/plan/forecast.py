"""What is expected of a step, and what can no schedule of these stages beat?"""

from collections.abc import Sequence

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement, Schedule
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.data import Forecast
from zerobubble.profile import Profile, stage_bytes, stage_costs
from zerobubble.search import Bound, lower_bound
from zerobubble.search.problem import Objective
from zerobubble.simulate import simulate

_TIMES_AND_SIZES = (
    "forward",
    "backward_input",
    "backward_weight",
    "transfer",
    "activation",
    "activation_kept",
)


def costs_of(
    profile: Profile, microbatch_size: int, layers_per_stage: Sequence[int], schedule: Schedule
) -> Costs:
    """Give the costs of every stage as a schedule runs it: split or not."""
    layers = layers_of_stages(layers_per_stage)
    return stage_costs(
        profile, microbatch_size, layers, schedule.placement, schedule.split_stages()
    )


def guessing_ranks(placement: Placement, validate: str) -> Floats:
    """Mark with 1 the ranks whose optimizer steps before the gradient norm is known, with 0 others.

    With ``post`` all do but the last in the order of the first stages, which learns it first.
    """
    marks = np.full(placement.num_ranks, float(validate == "post"))
    marks[list(dict.fromkeys(placement.stage_to_rank))[-1]] = 0.0
    return marks


def optimizer_ms_of_ranks(
    profile: Profile,
    microbatch_size: int,
    layers_per_stage: Sequence[int],
    placement: Placement,
    validate: str,
) -> Floats:
    """Give the time of the optimizer's step on every rank."""
    table = profile.at(microbatch_size)
    times, guesses = np.zeros(placement.num_ranks), guessing_ranks(placement, validate)
    pairs = zip(placement.stage_to_rank, layers_of_stages(layers_per_stage), strict=True)
    for rank, numbers in pairs:
        layers = table[numbers.start : numbers.stop]
        times[rank] += sum(layer.optimizer_step_ms(bool(guesses[rank])) for layer in layers)
    return times


def weight_bytes_of_ranks(
    profile: Profile, microbatch_size: int, layers_per_stage: Sequence[int], placement: Placement
) -> Floats:
    """Give the bytes of parameters, gradients and optimizer state of every rank."""
    held = np.zeros(placement.num_ranks)
    sizes = stage_bytes(profile, microbatch_size, layers_of_stages(layers_per_stage))
    for rank, size in zip(placement.stage_to_rank, sizes, strict=True):
        held[rank] += size.total
    return held


def step_ms(
    spans: Floats, makespan: float, optimizer_ms: Floats, validate: str, overhead_ms: float
) -> float:
    """Give the time from step to step.

    With ``post`` no barrier ends a step: a rank begins its next one when its last op and its
    optimizer are through, and the slowest rank sets the pace. With ``sync`` all wait for the
    gradient norm, then for each other's optimizer.
    """
    if validate == "post":
        return float((spans + optimizer_ms).max()) + overhead_ms
    return makespan + float(optimizer_ms.max()) + overhead_ms


def step_bound(
    profile: Profile,
    microbatch_size: int,
    layers_per_stage: Sequence[int],
    placement: Placement,
    num_microbatches: int,
    limits: Floats | None,
    validate: str,
) -> Bound:
    """Give the time that no step of these stages on these ranks can beat within memory limits.

    Whether stages run split or not: ops have the shorter of both times. Activations that leave the
    device, or are computed again, need no memory here: ``limits`` is then None.
    """
    parts = (profile, microbatch_size, layers_per_stage, placement)
    optimizer = optimizer_ms_of_ranks(*parts, validate)
    room = np.inf if limits is None else limits - weight_bytes_of_ranks(*parts)
    layers = layers_of_stages(layers_per_stage)
    each = [stage_costs(profile, microbatch_size, layers, placement, s) for s in (None, ())]
    shorter = Costs(
        **{name: np.minimum(*(getattr(costs, name) for costs in each)) for name in _TIMES_AND_SIZES}
    )
    objective: Objective = "span" if validate == "post" else "makespan"
    after = optimizer if validate == "post" else float(optimizer.max())
    return lower_bound(shorter, placement, num_microbatches, room, objective, after)


def forecast(
    profile: Profile,
    microbatch_size: int,
    layers_per_stage: Sequence[int],
    schedule: Schedule,
    validate: str = "post",
    memory: Floats | None = None,
) -> Forecast:
    """Forecast a step; ``memory`` is in bytes by rank, for the bound only, as in ``step_bound``.

    Raises:
        UsageError: the profile does not have this microbatch size.
        ScheduleError: the ops of the schedule wait for each other in a circle.
    """
    placement = schedule.placement
    parts = (profile, microbatch_size, layers_per_stage, placement)
    timeline = simulate(schedule, costs_of(profile, microbatch_size, layers_per_stage, schedule))
    optimizer = optimizer_ms_of_ranks(*parts, validate)
    overhead = float(profile.step_overhead_ms)
    spans = np.array(timeline.span_per_rank)
    bound = step_bound(*parts, schedule.num_microbatches, memory, validate)
    return Forecast(
        step_ms=step_ms(spans, timeline.makespan, optimizer, validate, overhead),
        span_ms=timeline.span,
        makespan_ms=timeline.makespan,
        bubble=timeline.bubble if validate == "post" else timeline.bubble_makespan,
        bound_ms=bound.value + overhead,
        binding=bound.reason,
        optimizer_ms=tuple(optimizer.tolist()),
        overhead_ms=overhead,
        weight_bytes=tuple(weight_bytes_of_ranks(*parts).tolist()),
        activation_bytes=tuple(timeline.peak_memory_per_rank),
    )
