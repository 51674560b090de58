"""What does a command print about a timeline?"""

import json
from typing import Any

from zerobubble.simulate import Timeline


def row(timeline: Timeline) -> dict[str, Any]:
    """Collect the numbers of a timeline under the keys that ``--json`` prints."""
    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "ranks": schedule.num_ranks,
        "microbatches": schedule.num_microbatches,
        "placement": str(schedule.placement),
        "span": timeline.span,
        "makespan": timeline.makespan,
        "bubble": timeline.bubble,
        "bubble_makespan": timeline.bubble_makespan,
        "peak_memory": timeline.peak_memory,
        "peak_memory_per_rank": timeline.peak_memory_per_rank,
    }


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2))
