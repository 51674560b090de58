"""How much shorter are steps when layers, placement and schedule are planned together?

Twenty seeded models with unequal layers, within the memory that 1F1B needs with even layers. A
plan is compared with interleaved 1F1B (two stages a rank, in as much memory as it likes) with the
same number of layers on every stage, and with the balanced partition: the same planner with layers
where dynamic programming puts them, for the best placement. Times are simulated.
"""

import statistics
import time

import numpy as np

from benchmarks.plan_models import NUM_MODELS, Case, draw_case, even_layers
from zerobubble.ir import Placement
from zerobubble.plan import Plan, make_plan
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.forecast import forecast, weight_bytes_of_ranks
from zerobubble.plan.partition import partition
from zerobubble.plan.placing import placements_to_try
from zerobubble.plan.task import Task
from zerobubble.profile import stage_costs
from zerobubble.schedules import build
from zerobubble.search import search
from zerobubble.view.numbers import table


def interleaved_ms(case: Case) -> tuple[float, float]:
    """Give the step of interleaved 1F1B with even layers, and its memory over that of the case."""
    schedule = build("interleaved:v=2", case.num_ranks, case.num_microbatches)
    lengths = even_layers(case.profile.num_layers, schedule.num_stages)
    expected = forecast(case.profile, 1, lengths, schedule)
    return expected.step_ms, max(expected.peak_bytes) / case.memory


def planned(case: Case) -> Plan:
    """Make the plan."""
    return make_plan(case.profile, case.num_ranks, case.num_microbatches, case.memory)


def balanced_ms(case: Case, placement: Placement) -> float:
    """Give the step of balanced layers with the schedule that a search finds, or inf."""
    profile, num_stages = case.profile, placement.num_stages
    tables = Task(profile, case.num_ranks, 1, np.inf, "post", "quick").tables(1)
    limits = np.full(case.num_ranks, case.memory)
    weights = [layer.compute_ms for layer in profile.at(1)]
    found = partition(weights, num_stages, placement, tables.least_bytes, limits)
    if found is None:
        return np.inf
    lengths = found.layers_per_stage
    costs = stage_costs(profile, 1, layers_of_stages(lengths), placement)
    room = limits - weight_bytes_of_ranks(profile, 1, lengths, placement)
    searched = search(costs, case.num_ranks, case.num_microbatches, room, placement, effort="quick")
    return forecast(profile, 1, lengths, searched.schedule).step_ms


def main() -> None:
    """Print a row for each model, and the mean gains."""
    rows, gains, moved = [], [], []
    for seed in range(NUM_MODELS):
        case = draw_case(seed)
        begin = time.perf_counter()
        plan = planned(case)
        seconds = time.perf_counter() - begin
        interleaved, memory = interleaved_ms(case)
        balanced = min(
            balanced_ms(case, place)
            for place in placements_to_try(case.profile.num_layers, case.num_ranks)
        )
        step = plan.forecast.step_ms
        gains.append(interleaved / step)
        moved.append(balanced / step)
        rows.append(
            [
                f"{seed} {case.kind}",
                str(case.num_ranks),
                str(case.num_microbatches),
                str(case.profile.num_layers),
                str(plan.schedule.placement),
                f"{step:.1f}",
                f"{plan.forecast.bubble:.1%}",
                f"{plan.forecast.gap:.1%}",
                f"{moved[-1]:.3f}",
                f"{gains[-1]:.3f}",
                f"{memory:.2f}",
                f"{seconds:.1f}",
            ]
        )
    header = ["model", "p", "m", "layers", "placement", "step ms", "bubble", "gap", "balanced"]
    print(table([*header, "interleaved", "its memory", "seconds"], rows))
    print(
        "\nstep of the balanced partition, and of interleaved 1F1B with even layers, over the "
        f"planned one: mean {statistics.mean(moved):.3f} and {statistics.mean(gains):.3f}, least "
        f"{min(moved):.3f} and {min(gains):.3f}, largest {max(moved):.3f} and {max(gains):.3f}"
    )


if __name__ == "__main__":
    main()
