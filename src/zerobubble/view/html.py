"""How does a timeline become a page? Data and the files of ``page/`` joined into one HTML file.

The page needs no server and no network, and computes everything from orders and costs itself:
simulated times are not in it, measured ones are, as arrays in base64.
"""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Schedule
from zerobubble.simulate import Timeline, simulate
from zerobubble.view.facts import Facts

MOST_PANELS = 4
# Stands at the top of every page; files without it are not replaced by one.
MARK = '<meta name="generator" content="zerobubble view">'

# In one pass: what is put in may look like a placeholder.
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_LONGEST_TITLE = 200

_PAGE = Path(__file__).parent / "page"
# A script may use what stands before it.
_SCRIPTS = (
    "numbers",
    "model/check",
    "model/schedule",
    "model/simulate",
    "model/facts",
    "model/panel",
    "around/state",
    "picture/layout",
    "picture/colors",
    "picture/ops",
    "picture/idle",
    "picture/memory",
    "picture/highlight",
    "picture/frame",
    "around/viewer",
    "around/interaction",
    "around/facts_shown",
    "around/controls",
    "main",
)


@dataclass(frozen=True, eq=False)
class Measured:
    """One measured step: its number, times, and by op code when outputs arrived (nan: unknown)."""

    number: int
    timeline: Timeline
    arrived: Floats | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """One schedule on the page, with the costs of its plan and perhaps a step that was measured.

    Attributes:
        schedule: what is drawn.
        costs: times and sizes from which the page simulates it.
        limits: memory limit of each rank, or None.
        unit: of the times, such as ms; empty where they are relative.
        measured: what is laid over the simulation, or None.
        note: one phrase that says where the plan comes from.
    """

    schedule: Schedule
    costs: Costs
    limits: Sequence[float] | None = None
    unit: str = ""
    measured: Measured | None = None
    note: str = ""

    def facts(self) -> list[Facts]:
        """Look into what the page shows: the simulated plan, and what was measured."""
        limits = None if self.limits is None else np.asarray(self.limits, dtype=np.float64)
        planned = Facts(simulate(self.schedule, self.costs), limits)
        if self.measured is None:
            return [planned]
        return [planned, Facts(self.measured.timeline, limits, self.measured.arrived)]


def write_page(panels: Sequence[Panel]) -> str:
    """Write the page that shows up to four schedules on one axis of time.

    >>> from zerobubble import Costs, build
    >>> panel = Panel(build("zb-h1", num_ranks=4, num_microbatches=8), Costs.uniform(num_stages=4))
    >>> len(write_page([panel])) < 300_000
    True
    """
    data = {"version": 1, "panels": [panel_data(panel) for panel in panels]}
    names = ", ".join(panel.schedule.name for panel in panels)
    title = names if len(names) <= _LONGEST_TITLE else f"{names[: _LONGEST_TITLE - 1]}…"
    parts = {
        "title": escape(f"{title} - zerobubble"),
        "css": (_PAGE / "page.css").read_text(encoding="utf-8"),
        "js": "\n".join(_script(name) for name in _SCRIPTS),
        "data": script_safe(json.dumps(data)),
    }
    text = (_PAGE / "page.html").read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], text)


def script_safe(text: str) -> str:
    """Escape JSON so that no text in it can end the script element that holds it.

    >>> print(script_safe('"</script>"'))
    "\\u003c/script\\u003e"
    """
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _script(name: str) -> str:
    return (_PAGE / f"{name}.js").read_text(encoding="utf-8")


def panel_data(panel: Panel) -> dict[str, Any]:
    """Give what the page reads of a panel: orders as op codes, costs, and measured times."""
    schedule = panel.schedule
    return {
        "name": schedule.name,
        "placement": schedule.placement.stage_to_rank,
        "num_microbatches": schedule.num_microbatches,
        "lengths": [len(order) for order in schedule.orders],
        "codes": _encode(schedule.flat()[0], np.int32),
        "costs": panel.costs.to_dict(),
        "limits": _finite(panel.limits),
        "unit": panel.unit,
        "note": panel.note,
        "measured": None if panel.measured is None else _measured(panel.measured),
    }


def _measured(measured: Measured) -> dict[str, Any]:
    timeline = measured.timeline
    codes, _ = timeline.schedule.flat()
    return {
        "number": measured.number,
        "start": _encode(np.concatenate(timeline.start), np.float64),
        "end": _encode(np.concatenate(timeline.end), np.float64),
        "arrived": None
        if measured.arrived is None
        else _encode(measured.arrived[codes], np.float64),
    }


def _finite(limits: Sequence[float] | None) -> list[float | None] | None:
    """A limit of infinity is none, and JSON has no word for it."""
    if limits is None:
        return None
    return [float(limit) if np.isfinite(limit) else None for limit in limits]


def _encode(values: ArrayLike, kind: DTypeLike) -> str:
    little = np.dtype(kind).newbyteorder("<")
    return b64encode(np.ascontiguousarray(values, dtype=little).tobytes()).decode("ascii")
