"""How is a plan shown? A line for each rank, then what to expect of a step, and why."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zerobubble.ir import Kind
from zerobubble.plan import Plan
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.names import layer_ranges, unit_for
from zerobubble.profile import Profile, stage_bytes
from zerobubble.simulate import simulate
from zerobubble.view.numbers import table

_COLUMNS = [
    "rank", "layers", "parameters", "weights", "activations", "peak", "limit", "compute", "idle",
]  # fmt: skip


class RankOfPlan(NamedTuple):
    """What one rank of a plan does and holds.

    Attributes:
        rank: its number.
        layers: names of its layers, in a row as ranges.
        parameter_bytes: of its parameters alone.
        weight_bytes: of parameters, gradients and optimizer state.
        activation_bytes: the largest sum of activations.
        limit_bytes: of both; None where there is none.
        compute_ms: time of its ops and its optimizer.
        idle: share of a step in which it does neither.
    """

    rank: int
    layers: str
    parameter_bytes: float
    weight_bytes: float
    activation_bytes: float
    limit_bytes: float | None
    compute_ms: float
    idle: float


def ranks_of_plan(plan: Plan, profile: Profile) -> list[RankOfPlan]:
    """Collect what every rank of a plan does and holds; the profile is the one it was made of."""
    placement, expected = plan.schedule.placement, plan.forecast
    layers = layers_of_stages(plan.layers_per_stage)
    sizes = [size.parameters for size in stage_bytes(profile, plan.microbatch_size, layers)]
    parameters = np.bincount(placement.stage_to_rank, weights=sizes).tolist()
    work = simulate(plan.schedule, plan.costs).work_per_rank
    found = []
    for rank in range(placement.num_ranks):
        numbers = [n for stage in placement.stages_of(rank) for n in layers[stage]]
        compute = work[rank] + expected.optimizer_ms[rank]
        limit = plan.memory_bytes[rank] if plan.memory_bytes else np.inf
        found.append(
            RankOfPlan(
                rank,
                layer_ranges(plan.layer_names, numbers),
                parameters[rank],
                expected.weight_bytes[rank],
                expected.activation_bytes[rank],
                limit if np.isfinite(limit) else None,
                compute,
                1 - compute / expected.step_ms if expected.step_ms > 0 else 0.0,
            )
        )
    return found


def draw_plan(plan: Plan, ranks: Sequence[RankOfPlan], sequence: int | None = None) -> str:
    """Draw the table of the ranks, the numbers of a step, and the reasons.

    Args:
        plan: what to show.
        ranks: as ``ranks_of_plan`` gives them.
        sequence: tokens of a sample, to tell tokens a second.
    """
    head = (
        f"{plan.model}: {len(ranks)} ranks, {plan.schedule.num_microbatches} microbatches of "
        f"{plan.microbatch_size}, placement {plan.schedule.placement}, schedule "
        f"{plan.schedule.name}"
    )
    reasons = [f"- {reason}" for reason in [*_relief(plan), *plan.reasons]]
    return "\n".join([head, _table(ranks), _step(plan, sequence), *reasons])


def relieved_stages(plan: Plan) -> dict[str, list[int]]:
    """List the stages with microbatches that are offloaded, and with some that are recomputed."""
    kinds = {"offloaded_stages": Kind.O, "recomputed_stages": Kind.R}
    found = {name: plan.schedule.has(kind).any(axis=1) for name, kind in kinds.items()}
    return {name: np.flatnonzero(stages).tolist() for name, stages in found.items()}


def _relief(plan: Plan) -> Iterator[str]:
    for name, stages in relieved_stages(plan).items():
        if stages:
            which = "all stages"
            if len(stages) < plan.schedule.num_stages:
                which = f"stages {', '.join(map(str, stages))}"
            yield f"{name.removesuffix('_stages')}: {which}"


def speed(plan: Plan, sequence: int | None) -> dict[str, float]:
    """Give samples, and if a length is known tokens, per second."""
    if plan.forecast.step_ms <= 0:
        return {}
    samples = plan.batch_size / plan.forecast.step_ms * 1e3
    tokens = {"tokens_per_second": samples * sequence} if sequence else {}
    return {"samples_per_second": samples, **tokens}


def row_of_plan(
    plan: Plan, ranks: Sequence[RankOfPlan], sequence: int | None = None
) -> dict[str, Any]:
    """Collect the numbers of a plan under the keys that ``--json`` prints."""
    expected = plan.forecast
    return {
        "model": plan.model,
        "schedule": plan.schedule.name,
        "ranks": plan.schedule.num_ranks,
        "microbatches": plan.schedule.num_microbatches,
        "microbatch_size": plan.microbatch_size,
        "batch_size": plan.batch_size,
        "placement": str(plan.schedule.placement),
        "validate": plan.validate,
        "layers_per_stage": list(plan.layers_per_stage),
        "step_ms": expected.step_ms,
        "span_ms": expected.span_ms,
        "makespan_ms": expected.makespan_ms,
        "bubble": expected.bubble,
        "bound_ms": expected.bound_ms,
        "gap": expected.gap,
        "binding": expected.binding,
        **speed(plan, sequence),
        **relieved_stages(plan),
        "per_rank": [each._asdict() for each in ranks],
        "reasons": list(plan.reasons),
    }


def _table(ranks: Sequence[RankOfPlan]) -> str:
    """Draw all sizes in the unit that suits the largest sum, so that they can be compared."""
    unit, size = unit_for(max(each.weight_bytes + each.activation_bytes for each in ranks))

    def shown(num_bytes: float | None) -> str:
        return "-" if num_bytes is None else f"{num_bytes / size:.{2 * (size > 1)}f}"

    rows = [
        [
            str(each.rank),
            each.layers,
            shown(each.parameter_bytes),
            shown(each.weight_bytes),
            shown(each.activation_bytes),
            shown(each.weight_bytes + each.activation_bytes),
            shown(each.limit_bytes),
            f"{each.compute_ms:.4g}",
            f"{each.idle:.1%}",
        ]
        for each in ranks
    ]
    return table(_COLUMNS, [["", "", *[unit] * 5, "ms", ""], *rows], left=2)


def _step(plan: Plan, sequence: int | None) -> str:
    expected = plan.forecast
    rates = [
        f"{rate:.4g} {name.replace('_per_second', '/s')}"
        for name, rate in speed(plan, sequence).items()
    ]
    return ", ".join(
        [
            f"step {expected.step_ms:.4g} ms",
            *rates,
            f"bubble {expected.bubble:.1%}",
            f"at most {expected.gap:.1%} above the bound",
        ]
    )
