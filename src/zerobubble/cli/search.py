"""Find the best schedule within a memory limit, with a proof of how close it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from tyro.conf import arg

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    CostsFlag,
    EffortFlag,
    Json,
    MemoryFlag,
    Microbatches,
    ObjectiveFlag,
    Out,
    Ranks,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json, print_timeline, row
from zerobubble.cli._resolve import (
    read_costs,
    read_costs_for_any_placement,
    read_memory,
    require_counts,
)
from zerobubble.cli._writing import SCHEDULE, Target, require_places
from zerobubble.formats.json import save
from zerobubble.search import SearchResult, lower_bound, search
from zerobubble.search.placements import PLACEMENTS, CostsOrFunction

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
    json: Json = False
    out: Out = None


def run(argv: Sequence[str]) -> int:
    """Search all placements asked for, print the best schedule, and write it if asked."""
    asked = parse(Search, argv, command="search")
    ranks, microbatches = require_counts("search", asked.ranks, asked.microbatches)
    limits = read_memory(asked.memory, ranks) or np.inf
    require_places(Target("--out", asked.out, SCHEDULE))
    if asked.placement:
        costs: CostsOrFunction = partial(read_costs, asked.costs)
    else:
        costs = read_costs_for_any_placement(asked.costs, ranks)
    found = search(
        costs,
        ranks,
        microbatches,
        limits,
        asked.placement or None,
        asked.objective,
        asked.effort,
    )
    if asked.out is not None:
        save(found.schedule, asked.out)
    if asked.json:
        print_json(_row(found, limits))
    else:
        print_timeline(found.timeline)
        print(_certificate(found))
    return 0


def _certificate(found: SearchResult) -> str:
    load = max(found.timeline.work_per_rank)
    bubble = max(0.0, 1 - load / found.bound) if found.bound > 0 else 0.0
    proof = "proved optimal" if found.is_proved_optimal else f"at most {found.gap:.2%} from optimal"
    return (
        f"{proof} for this placement: no {found.objective} below {found.bound:.6g}, bubble "
        f"{bubble:.2%} ({found.binding})"
    )


def _row(found: SearchResult, limits: Any) -> dict[str, Any]:
    timeline = found.timeline
    problem = (timeline.costs, timeline.schedule.placement, timeline.schedule.num_microbatches)
    return row(timeline) | {
        "objective": found.objective,
        "bound_span": lower_bound(*problem, limits, "span").value,
        "bound_makespan": lower_bound(*problem, limits, "makespan").value,
        "gap": found.gap,
        "binding": found.binding,
        "seconds": found.seconds,
    }
