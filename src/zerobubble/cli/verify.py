"""Check a schedule against every rule, and say what to mend."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    BandwidthFlag,
    CostsFlag,
    Json,
    MemoryFlag,
    Microbatches,
    Ranks,
    ReplayFlag,
    Spec,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json
from zerobubble.cli._resolve import read_memory, resolve_asked
from zerobubble.ir import Schedule
from zerobubble.verify import RULES, Violation, violations

_MOST_LINES = 5


@dataclass(frozen=True)
class Verify:
    """Check a schedule against every rule, and say what to mend."""

    schedule: Spec
    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    memory: MemoryFlag = None
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    json: Json = False


def run(argv: Sequence[str]) -> int:
    """Print that the schedule obeys the rules, or on stderr where it breaks one."""
    asked = parse(Verify, argv, command="verify")
    schedule, costs = resolve_asked(asked.schedule, asked)
    limits = read_memory(asked.memory, schedule.num_ranks)
    found = violations(schedule, costs, limits)
    if asked.json:
        print_json(_report(schedule, found))
    elif not found:
        size = f"{schedule.num_ranks} ranks, {schedule.num_microbatches} microbatches"
        print(f"{schedule.name} obeys all {len(RULES)} rules: {size}, {schedule.num_ops} ops")
    for violation in found[:_MOST_LINES]:
        print(violation, file=sys.stderr)
    if len(found) > _MOST_LINES:
        print(f"and {len(found) - _MOST_LINES} more", file=sys.stderr)
    return 1 if found else 0


def _report(schedule: Schedule, found: list[Violation]) -> dict[str, object]:
    return {
        "schedule": schedule.name,
        "ranks": schedule.num_ranks,
        "microbatches": schedule.num_microbatches,
        "placement": str(schedule.placement),
        "violations": [asdict(violation) for violation in found],
    }
