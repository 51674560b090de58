"""Find the best schedule within a memory limit, with a proof of how close it is."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from tyro.conf import arg

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    BandwidthFlag,
    CostsFlag,
    EffortFlag,
    Json,
    MemoryFlag,
    Microbatches,
    ObjectiveFlag,
    OffloadFlag,
    Out,
    Ranks,
    RecomputeFlag,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json, print_timeline, row
from zerobubble.cli._resolve import (
    read_costs_to_search,
    read_memory,
    require_counts,
)
from zerobubble.cli._writing import SCHEDULE, Target, require_places
from zerobubble.copies import copy_to_compute_ratio
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.formats.json import save
from zerobubble.search import SearchResult, search
from zerobubble.search.placements import PLACEMENTS, CostsOrFunction
from zerobubble.search.relief import Relief
from zerobubble.search.relief.bounds import bound_of_any
from zerobubble.verify import limits_of_ranks

_PLACEMENT_HELP = (
    "linear, v, looped:2, wave:4 or the rank of each stage as in 0,1,1,0; by default all of "
    f"{', '.join(PLACEMENTS)} are tried"
)


@dataclass(frozen=True)
class Search:
    """Find the best schedule within a memory limit, with a proof of how close it is."""

    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    memory: MemoryFlag = None
    placement: Annotated[str, arg(name="placement", help=_PLACEMENT_HELP)] = ""
    objective: ObjectiveFlag = "span"
    effort: EffortFlag = "default"
    offload: OffloadFlag = "off"
    offload_bandwidth: BandwidthFlag = None
    recompute: RecomputeFlag = "off"
    json: Json = False
    out: Out = None


def run(argv: Sequence[str]) -> int:
    """Search all placements asked for, print the best schedule, and write it if asked."""
    asked = parse(Search, argv, command="search")
    ranks, microbatches = require_counts("search", asked.ranks, asked.microbatches)
    limits = read_memory(asked.memory, ranks) or np.inf
    if asked.offload_bandwidth is not None and asked.offload == "off":
        raise UsageError(
            "--offload-bandwidth says how fast copies are, and --offload is off: add --offload "
            "auto, or leave out --offload-bandwidth"
        )
    require_places(Target("--out", asked.out, SCHEDULE))
    costs = read_costs_to_search(
        asked.costs, ranks, asked.offload_bandwidth, asked.offload, asked.placement
    )
    found = search(
        costs,
        ranks,
        microbatches,
        limits,
        asked.placement or None,
        asked.objective,
        asked.effort,
        asked.offload,
        asked.recompute,
    )
    if asked.out is not None:
        save(found.schedule, asked.out)
    if asked.json:
        print_json(_row(found, asked, costs, limits))
    else:
        print_timeline(found.timeline)
        print(_certificate(found))
        if Relief(asked.offload, asked.recompute) != Relief():
            print(_moved(found))
            if asked.offload != "off":
                print(_hiding(found.timeline.costs))
            print(f"show, verify, view and export time it so with: {_replay(found, asked)}")
    return 0


def _certificate(found: SearchResult) -> str:
    load = max(found.timeline.work_per_rank)
    bubble = max(0.0, 1 - load / found.bound) if found.bound > 0 else 0.0
    proof = "proved optimal" if found.is_proved_optimal else f"at most {found.gap:.2%} from optimal"
    return (
        f"{proof} for this placement: no {found.objective} below {found.bound:.6g}, bubble "
        f"{bubble:.2%} ({found.binding})"
    )


def _moved(found: SearchResult) -> str:
    """Say which stages leave the device or are run again."""
    light = "with" if found.is_light else "without"
    offloaded, again = map(written_short, (found.offloaded_stages, found.recomputed_stages))
    return f"offloaded stages: {offloaded}; recomputed stages: {again}; {light} light recompute"


def _hiding(costs: Costs) -> str:
    """Say whether copies can run beside the compute."""
    k = copy_to_compute_ratio(costs)
    return f"k: copies to the host and back take {k:.3g} of the compute of their stage, at most"


def _replay(found: SearchResult, asked: Search) -> str:
    """Write the flags that give other commands the costs of what was found."""
    words = ["--costs", asked.costs]
    if asked.offload_bandwidth is not None:
        words += ["--offload-bandwidth", asked.offload_bandwidth]
    return shlex.join(words + ["--recompute", "light"] * found.is_light)


def written_short(stages: Sequence[int]) -> str:
    """Write sorted numbers with a dash for those in a row.

    >>> written_short([0, 1, 2, 5]), written_short([])
    ('0-2, 5', 'none')
    """
    runs: list[list[int]] = []
    for stage in stages:
        if runs and runs[-1][-1] == stage - 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(parts) or "none"


def _row(found: SearchResult, asked: Search, costs: CostsOrFunction, limits: Any) -> dict[str, Any]:
    timeline, place = found.timeline, found.schedule.placement
    k = copy_to_compute_ratio(timeline.costs)
    its = costs if isinstance(costs, Costs) else costs(place)
    relief = Relief(asked.offload, asked.recompute)
    problem = (
        its,
        place,
        found.schedule.num_microbatches,
        limits_of_ranks(limits, place.num_ranks),
    )
    return row(timeline) | {
        "objective": found.objective,
        "bound_span": bound_of_any(*problem, "span", relief, timeline.span).value,
        "bound_makespan": bound_of_any(*problem, "makespan", relief, timeline.makespan).value,
        "gap": found.gap,
        "binding": found.binding,
        "seconds": found.seconds,
        "offloaded_stages": found.offloaded_stages,
        "recomputed_stages": found.recomputed_stages,
        "light_recompute": found.is_light,
        "offload_to_compute_ratio": k if np.isfinite(k) else None,
        "replay": _replay(found, asked),
    }
