"""Why is a plan as fast as it is, and what would make it faster? In sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.data import Forecast
from zerobubble.plan.names import layer_ranges
from zerobubble.plan.task import Candidate, Task

GIB = 2.0**30

# Work that differs from the mean, or a step from the bound, by no more counts as equal.
_EVEN, _SAME = 1.01, 1e-6


def reasons(
    task: Task,
    found: Sequence[Candidate],
    start: Candidate,
    forecast: Forecast,
    with_more: Candidate | None,
) -> tuple[str, ...]:
    """Explain the first of the candidates.

    Args:
        task: what was planned.
        found: all candidates that fit, best first.
        start: the balanced partition with the placement of the first.
        forecast: of the first.
        with_more: the best for one GiB more a rank; None where memory is not limited.
    """
    best = found[0]
    sentences = [_bottleneck(task, best), _distance(forecast)]
    if best.layers_per_stage != start.layers_per_stage:
        sentences.append(
            f"layers moved from the balanced partition {_numbers(start.layers_per_stage)}: step "
            f"{_percent(1 - best.step_ms / start.step_ms)} shorter"
        )
    sentences += _runners_up(found)
    if with_more is not None:
        sentences.append(_next_gib(best, with_more))
    return tuple(sentences)


def _bottleneck(task: Task, best: Candidate) -> str:
    """Name the rank with most work, and its layers."""
    stages = np.asarray(best.placement.stage_to_rank)
    costs = best.costs
    once = np.bincount(stages, costs.forward + costs.backward_input + costs.backward_weight)
    optimizer = task.optimizer_ms(best.microbatch_size, best.layers_per_stage, best.placement)
    work = once * float(best.schedule.num_microbatches) + optimizer
    rank = int(work.argmax())
    share = float(work[rank] / work.mean()) if work[rank] > 0 else 1.0
    if share <= _EVEN:
        return f"work is even: rank {rank} has most, {share:.3f} x the mean"
    names = layer_ranges(task.profile.layer_names, layers_of_rank(best, rank))
    return f"rank {rank} is the bottleneck: {names}; {share:.2f} x the mean"


def layers_of_rank(candidate: Candidate, rank: int) -> list[int]:
    """List the numbers of a rank's layers."""
    layers = layers_of_stages(candidate.layers_per_stage)
    return [number for stage in candidate.placement.stages_of(rank) for number in layers[stage]]


def _distance(forecast: Forecast) -> str:
    if forecast.gap <= _SAME:
        return f"no schedule of these stages has a shorter step: {forecast.binding}"
    gap = _percent(forecast.gap)
    return (
        f"{gap if gap.startswith('less') else f'at most {gap}'} above the shortest step of these "
        f"stages, which is no less than {forecast.bound_ms:.6g} ms: {forecast.binding}"
    )


def _runners_up(found: Sequence[Candidate]) -> Iterator[str]:
    """Compare with the best of the other placements, and of the other microbatch sizes."""
    best = found[0]
    for other in found[1:]:
        if other.placement != best.placement and other.microbatch_size == best.microbatch_size:
            yield (
                f"placement {best.placement}: the next best, {other.placement}, has a step of "
                f"{_compared(other, best)}"
            )
            break
    for other in found[1:]:
        if other.microbatch_size != best.microbatch_size:
            yield (
                f"microbatch size {best.microbatch_size}: with {other.microbatch_size} a step "
                f"takes {_compared(other, best)}"
            )
            break


def _compared(other: Candidate, best: Candidate) -> str:
    longer = other.step_ms / best.step_ms - 1 if best.step_ms > 0 else 0.0
    as_long = f"{_percent(longer)} longer" if longer > _SAME else "as long"
    return f"{other.step_ms:.6g} ms, {as_long}"


def _next_gib(best: Candidate, with_more: Candidate) -> str:
    gain = 1 - with_more.step_ms / best.step_ms if best.step_ms > 0 else 0.0
    if gain <= _SAME:
        return "1 GiB more a rank would buy nothing"
    ways = []
    if with_more.placement != best.placement:
        ways.append(f"placement {with_more.placement}")
    if with_more.microbatch_size != best.microbatch_size:
        ways.append(f"microbatch size {with_more.microbatch_size}")
    how = f" ({', '.join(ways)})" if ways else ""
    return f"1 GiB more a rank: step {_percent(gain)} shorter{how}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "less than 0.05%"


def _numbers(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))
