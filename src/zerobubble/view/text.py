"""How does a timeline look as text? One row a rank, time from left to right.

The copies of a rank run beside its ops, so that they have rows of their own beneath.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Kind, Op
from zerobubble.simulate import Timeline
from zerobubble.view.labels import label, styled, turns
from zerobubble.view.lanes import Lane, kinds_in, rows_of

MEANINGS = {
    Kind.F: "forward",
    Kind.B: "input gradient",
    Kind.W: "weight gradient",
    Kind.BW: "both gradients",
    Kind.O: "copy to the host",
    Kind.L: "copy back",
    Kind.R: "forward again",
}
COLORS = {
    Kind.F: "#ffb347",
    Kind.B: "#7ccf7c",
    Kind.W: "#7fb2ff",
    Kind.BW: "#7dd3c8",
    Kind.O: "#cbaee6",
    Kind.L: "#f2a9c4",
    Kind.R: "#e9d66b",
}

_FEWEST_CELLS = 2
_MOST_STAGES_IN_LEGEND = 4

Segment = tuple[str, Kind | None]
Row = tuple[str, list[Segment]]


def draw(
    timeline: Timeline, width: int | None = None, color: bool = False, fold: bool = False
) -> str:
    """Draw one row for each rank, every op as wide as it is long, then a legend.

    Beneath a rank whose copies take time, one row shows those to the host and one those back.

    An op shows its kind and microbatch where there is room, else its kind, else only a bar. On a
    rank with several stages upper and lower case alternate from stage to stage (in a wave: down
    and up), and every second pair of stages adds a ``'``. Dots are idle time.

    Args:
        timeline: simulated or measured, in any unit of time.
        width: number of columns; the picture is scaled to fit, or cut at a ``>`` where ops would
            become too narrow to tell apart. By default it is as wide as its labels need.
        color: whether to colour the ops with terminal codes.
        fold: whether to go on below, at full size, where the width ends.

    >>> from zerobubble import Costs, build, simulate
    >>> print(draw(simulate(build("1f1b", num_ranks=2, num_microbatches=2), Costs.uniform(2))))
    rank 0 |F0|F1|.....|BW0  |..|BW1  |
    rank 1    |F0|BW0  |F1|BW1  |
    F forward, BW both gradients, . idle
    """
    canvas = _Canvas(timeline, None if fold else width)
    rows = [canvas.row(lane) for lane in canvas.lanes]
    blocks = _folded(rows, width - canvas.name_width) if fold and width else [rows]
    paint = _painted if color else _plain
    lines = [
        label + "".join(paint(*part) for part in segments)
        for block in blocks
        for label, segments in block
    ]
    return "\n".join(line.rstrip() for line in [*lines, canvas.legend()])


@dataclass(frozen=True)
class _Canvas:
    """Where each moment of a timeline falls, in columns."""

    timeline: Timeline
    width: int | None

    @cached_property
    def origin(self) -> float:
        return min(float(start[0]) for start in self.timeline.start if len(start))

    @cached_property
    def lanes(self) -> list[Lane]:
        """What each row shows."""
        return rows_of(self.timeline)

    @cached_property
    def name_width(self) -> int:
        return max(len(self.name(lane)) for lane in self.lanes)

    @cached_property
    def turn_of_stage(self) -> dict[int, int]:
        """How many stages the same rank holds before each stage."""
        return turns(self.timeline.schedule.placement)

    @cached_property
    def durations(self) -> Floats:
        """Durations of all ops, rank after rank."""
        pairs = zip(self.timeline.start, self.timeline.end, strict=True)
        return np.concatenate([end - start for start, end in pairs])

    @cached_property
    def unit(self) -> float:
        """A short duration that decides the scale: the shortest, if it is not an exception."""
        positive = np.sort(self.durations[self.durations > 0]).tolist()
        return max(positive[0], positive[len(positive) // 2] / 4) if positive else 1.0

    @cached_property
    def cells_per_unit(self) -> int:
        """Columns of the unit: what the labels need, or less to fit the width."""
        ops = (op for rank in self.ranks for op in self.timeline.schedule.ops(rank))
        needs = np.array([len(self.label(op)) + 1 for op in ops])
        cells = needs * self.unit / np.maximum(self.durations, self.unit)
        usual = self.durations >= self.unit
        wanted = math.ceil(float(cells.max(initial=0, where=usual)) - 1e-9)
        if self.width is None:
            return max(_FEWEST_CELLS, wanted)
        fitting = (self.room - 1) * self.unit / max(self.timeline.makespan, self.unit)
        return max(_FEWEST_CELLS, min(wanted, math.floor(fitting + 1e-9)))

    @cached_property
    def room(self) -> int:
        """Columns to the right of the rank's name."""
        return max((self.width or 0) - self.name_width, _FEWEST_CELLS)

    @property
    def ranks(self) -> range:
        return range(self.timeline.schedule.num_ranks)

    def name(self, lane: Lane) -> str:
        return f"rank {lane.rank:>{len(str(self.ranks[-1]))}} {lane.name}{' ' * bool(lane.name)}"

    def label(self, op: Op) -> str:
        return label(op, self.turn_of_stage[op.stage])

    def column(self, time: float) -> int:
        return math.floor((time - self.origin) / self.unit * self.cells_per_unit + 0.5)

    def row(self, lane: Lane) -> Row:
        """Give the name of a row and its pieces, cut to the width."""
        segments = list(self.segments(lane))
        if self.width is not None and sum(len(text) for text, _ in segments) > self.room:
            segments = [*_cut(segments, 0, self.room - 1), (">", None)]
        return self.name(lane).ljust(self.name_width), segments

    def segments(self, lane: Lane) -> Iterator[Segment]:
        position, idle = -1, " " if lane.name else "."
        ops = self.timeline.timed_ops(lane.rank)
        for _, op, start, end in (ops[index] for index in lane.indices.tolist()):
            first, last = self.column(start), self.column(end)
            if position < 0:
                yield " " * first, None
            elif first > position:
                yield "|" + idle * (first - position - 1), None
            yield _cell(self.label(op), len(op.kind.name), last - first), op.kind
            position = last
        yield "|", None

    def legend(self) -> str:
        kinds = kinds_in(self.lanes, self.timeline.schedule)
        parts = [f"{kind.name} {MEANINGS[kind]}" for kind in kinds]
        if self.timeline.schedule.has_copies and Kind.O not in kinds and Kind.L not in kinds:
            parts.append("copies take no time")
        if any(idle > 0 for idle in self.timeline.idle_per_rank):
            parts.append(". idle")
        num_turns = max(self.turn_of_stage.values()) + 1
        if num_turns > 1:
            shown = min(num_turns, _MOST_STAGES_IN_LEGEND)
            marks = " ".join(styled("F", turn, "0") for turn in range(shown))
            parts.append(f"{marks}{' ...' * (shown < num_turns)} stages of a rank in order")
        makespan = self.timeline.makespan
        if self.width is not None and self.column(self.origin + makespan) >= self.room:
            time = (self.room - 1) / self.cells_per_unit * self.unit
            parts.append(f"> cut at {time:.6g} of {makespan:.6g}")
        return ", ".join(parts)


def _cut(segments: list[Segment], first: int, end: int) -> Iterator[Segment]:
    """Keep the columns of a row from the first up to the end."""
    position = 0
    for text, kind in segments:
        kept = text[max(first - position, 0) : max(end - position, 0)]
        position += len(text)
        if kept:
            yield kept, kind


def _folded(rows: list[Row], num_columns: int) -> Iterator[list[Row]]:
    """Break rows into blocks of so many columns."""
    longest = max(sum(len(text) for text, _ in segments) for _, segments in rows)
    step = max(num_columns, _FEWEST_CELLS)
    for first in range(0, longest, step):
        yield [(label, list(_cut(segments, first, first + step))) for label, segments in rows]


def _cell(label: str, num_letters: int, num_columns: int) -> str:
    """Fill the columns of one op: a bar, then as much of the label as makes sense."""
    room = num_columns - 1
    text = label if len(label) <= room else label[: min(num_letters, max(room, 0))]
    return ("|" + text.ljust(room))[: max(num_columns, 0)]


def _plain(text: str, kind: Kind | None) -> str:
    return text


def _painted(text: str, kind: Kind | None) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    style = Style(dim=True) if kind is None else Style(color="black", bgcolor=COLORS[kind])
    return style.render(text, color_system=ColorSystem.EIGHT_BIT)
