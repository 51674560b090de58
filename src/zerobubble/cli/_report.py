"""What does a command print about a timeline?"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from zerobubble.simulate import Timeline, has_free_copies
from zerobubble.view.explain import explain
from zerobubble.view.facts import Facts
from zerobubble.view.numbers import summarize
from zerobubble.view.text import draw

_LONGEST_NAME = 60


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


def shortened(name: str) -> str:
    """Cut a name that is longer than a line has room for."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2))


def facts_row(facts: Facts) -> dict[str, Any]:
    """Collect where the time of a timeline goes: idle time by rank and cause, the critical path."""
    return {"idle": facts.idle_by_cause(), "critical_path": facts.split._asdict()}


def print_timeline(timeline: Timeline, limits: Sequence[float] | None = None) -> None:
    """Print the picture of a timeline, its numbers, and where its time goes."""
    schedule = timeline.schedule
    print(
        f"{shortened(schedule.name)}: {schedule.num_ranks} ranks, "
        f"{schedule.num_microbatches} microbatches, placement {schedule.placement}"
    )
    print(draw(timeline, terminal_width(), is_colored()))
    print(_wrapped(summarize(timeline), terminal_width()))
    print(_wrapped(explain(facts_of(timeline, limits)), terminal_width()))


def tell_of_free_copies(timelines: Iterable[Timeline]) -> None:
    """Print a line where nobody said how long the copies of schedules take."""
    free = [each.schedule.name for each in timelines if has_free_copies(each)]
    if free:
        names = shortened(", ".join(free))
        print(f"copies of {names} take no time: --offload-bandwidth says how fast they are")


def _wrapped(text: str, width: int | None) -> str:
    """Break lines that are longer than the terminal is wide."""
    if width is None:
        return text
    return "\n".join(fill(line, max(width, 2), subsequent_indent=" ") for line in text.split("\n"))


def facts_of(timeline: Timeline, limits: Sequence[float] | None) -> Facts:
    """Look into a timeline under memory limits, one for each rank, if there are any."""
    return Facts(timeline, None if limits is None else np.asarray(limits, dtype=np.float64))


def terminal_width() -> int | None:
    """Give the number of columns; None where the output goes to no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_colored() -> bool:
    """Say whether to print in colours: on a terminal, unless ``NO_COLOR`` is set."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
