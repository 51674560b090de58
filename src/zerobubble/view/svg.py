"""How does a timeline look as a vector picture, for papers and web pages?

One row for each rank, time from left to right: every op a rectangle in the colour and hatch of its
kind, idle time grey; copies in lower rows beneath the ops that they run beside. The panel brings
its own light background, so that it reads the same on a dark page. Ops too narrow to be seen are
gathered into bars as high as their share of the time, so that the size of the file does not grow
with the number of ops.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from xml.sax.saxutils import escape

import numpy as np

from zerobubble.costs import Floats
from zerobubble.ir import Codes, Kind
from zerobubble.simulate import Timeline
from zerobubble.view.labels import label, styled, turns
from zerobubble.view.lanes import Lane, rows_of
from zerobubble.view.text import COLORS, MEANINGS

WIDTH = 960
_LEFT, _RIGHT, _TOP, _AXIS, _LEGEND = 58, 16, 34, 26, 28
_FONT, _LETTER = 11, 6.4
_TALLEST, _LOWEST, _ALL_ROWS = 30, 3, 1000
_MOST_CELLS = 8000
# Height of a row of copies; that of a row of ops is 1.
_OF_COPIES = 0.6
_TICK_DISTANCE = 70
_MOST_LETTERS = 90
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_INK, _FAINT, _PANEL, _IDLE, _LINE = "#1f2328", "#59636e", "#ffffff", "#e4e7eb", "#d1d9e0"
# Lines of the hatch of each kind, in a square of 6 by 6.
_HATCHES = {
    Kind.F: "",
    Kind.B: "M-1 1l2 -2M0 6l6 -6M5 7l2 -2",
    Kind.W: "M0 3h6",
    Kind.BW: "M-1 5l2 2M0 0l6 6M5 -1l2 2",
    Kind.O: "M1.5 0v6",
    Kind.L: "M1.5 0v6M0 3h6",
    Kind.R: "M2.5 3h1",
}


def draw_svg(timeline: Timeline, title: str = "", unit: str = "", width: int = WIDTH) -> str:
    """Draw a timeline as the text of an SVG file.

    Args:
        timeline: simulated or measured.
        title: stands above the rows; by default the schedule's name and size.
        unit: of the times, written behind those of the axis.
        width: of the picture, in pixels.

    >>> from zerobubble import Costs, build, simulate
    >>> schedule = build("1f1b", num_ranks=2, num_microbatches=2)
    >>> picture = draw_svg(simulate(schedule, Costs.uniform(2)))
    >>> picture.count('class="op"'), picture.count(">BW1<")
    (8, 2)
    """
    return "\n".join(_Picture(timeline, title, unit, max(width, 2 * _LEFT)).lines()) + "\n"


@dataclass(frozen=True)
class _Picture:
    """Where everything stands, in pixels."""

    timeline: Timeline
    given_title: str
    unit: str
    width: int

    @cached_property
    def origin(self) -> float:
        return min(float(start[0]) for start in self.timeline.start if len(start))

    @cached_property
    def scale(self) -> float:
        """Pixels of a unit of time."""
        makespan = self.timeline.makespan
        return (self.width - _LEFT - _RIGHT) / makespan if makespan > 0 else 1.0

    @property
    def num_ranks(self) -> int:
        return self.timeline.schedule.num_ranks

    @cached_property
    def lanes(self) -> list[Lane]:
        return rows_of(self.timeline)

    @cached_property
    def heights(self) -> Floats:
        """Height of each row with the gap below, in rows of ops."""
        return np.array([_OF_COPIES if lane.name else 1.0 for lane in self.lanes])

    @cached_property
    def pitch(self) -> float:
        """Distance from a row of ops to the next row."""
        return min(_TALLEST, max(_LOWEST, _ALL_ROWS / float(self.heights.sum())))

    def row_height(self, number: int) -> float:
        return float(self.heights[number]) * self.pitch * 0.8

    @property
    def bottom(self) -> float:
        return self.y(len(self.lanes))

    @cached_property
    def smallest(self) -> float:
        """Width below which ops are gathered."""
        return max(1.0, len(self.lanes) * self.width / _MOST_CELLS)

    @cached_property
    def turn_of_stage(self) -> dict[int, int]:
        return turns(self.timeline.schedule.placement)

    @cached_property
    def styles(self) -> list[tuple[Kind, int]]:
        """The kinds of op that are drawn, each for even and for odd turns of a rank's stages."""
        schedule = self.timeline.schedule
        drawn = [schedule.orders[lane.rank][lane.indices] for lane in self.lanes]
        kinds, stages, _ = schedule.fields(np.concatenate(drawn))
        found = np.unique(2 * kinds + self.is_odd[stages])
        return [(Kind(style // 2), style % 2) for style in found.tolist()]

    @cached_property
    def is_odd(self) -> Codes:
        """Tabulate for each stage whether its turn on its rank is odd, as 0 or 1."""
        turn_of_stage = self.turn_of_stage
        return np.array([turn_of_stage[s] % 2 for s in range(len(turn_of_stage))])

    @property
    def title(self) -> str:
        schedule = self.timeline.schedule
        default = (
            f"{schedule.name}: {schedule.num_ranks} ranks, {schedule.num_microbatches} microbatches"
        )
        return self.given_title or default

    @property
    def summary(self) -> str:
        timeline, unit = self.timeline, f" {self.unit}" if self.unit else ""
        return (
            f"span {timeline.span:.6g}{unit}, bubble {timeline.bubble:.1%}, "
            f"peak memory {timeline.peak_memory:.6g}"
        )

    def x(self, time: float) -> float:
        return _LEFT + (time - self.origin) * self.scale

    def y(self, number: int) -> float:
        """Where a row begins."""
        return _TOP + float(self.heights[:number].sum()) * self.pitch

    def lines(self) -> Iterator[str]:
        height = self.bottom + _AXIS + _LEGEND
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{_n(height)}" '
            f'viewBox="0 0 {self.width} {_n(height)}" role="img" aria-labelledby="title desc" '
            f"font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" "
            f'font-size="{_FONT}" fill="{_INK}">'
        )
        yield f'<title id="title">{_text(self.title)}</title>'
        yield f'<desc id="desc">{_text(self.description())}</desc>'
        yield "<defs>"
        yield from (_pattern(kind, odd) for kind, odd in self.styles)
        yield "</defs>"
        yield (
            f'<rect class="panel" x=".5" y=".5" width="{self.width - 1}" '
            f'height="{_n(height - 1)}" rx="6" fill="{_PANEL}" stroke="{_LINE}"/>'
        )
        yield from self.heading()
        yield from self.axis()
        for number in range(len(self.lanes)):
            yield from self.row(number)
        yield from self.legend(height - _LEGEND / 2 - 2)
        yield "</svg>"

    def description(self) -> str:
        """Say in words what the picture shows."""
        timeline = self.timeline
        idle = (
            f"rank {rank} {idle / span if span else 0:.1%}"
            for rank, (idle, span) in enumerate(
                zip(timeline.idle_per_rank, timeline.span_per_rank, strict=True)
            )
        )
        return (
            f"One row for each rank, time from left to right. {self.summary}, makespan "
            f"{timeline.makespan:.6g}. "
            f"Idle: {', '.join(idle)}. Ops narrower than {_n(self.smallest)} px are gathered into "
            "bars as high as their share of the time."
        )

    def heading(self) -> Iterator[str]:
        y = _TOP - 14
        title = self.title if len(self.title) <= _MOST_LETTERS else f"{self.title[:_MOST_LETTERS]}…"
        yield f'<text class="title" x="12" y="{y}" font-weight="600">{_text(title)}</text>'
        yield (
            f'<text class="summary" x="{self.width - _RIGHT}" y="{y}" text-anchor="end" '
            f'fill="{_FAINT}">{_text(self.summary)}</text>'
        )

    def axis(self) -> Iterator[str]:
        """Draw a line and a number at every round time."""
        step = _round_step(self.timeline.makespan, (self.width - _LEFT - _RIGHT) / _TICK_DISTANCE)
        times = np.arange(math.floor(self.timeline.makespan / step + 1e-9) + 1) * step
        yield f'<g class="axis" stroke="{_LINE}" fill="{_FAINT}" text-anchor="middle">'
        for time in times.tolist():
            x, last = _n(_LEFT + time * self.scale), time == times[-1]
            yield f'<path d="M{x} {_TOP - 4}V{_n(self.bottom + 2)}"/>'
            number = f"{time:.6g}{' ' + self.unit if last and self.unit else ''}"
            yield f'<text x="{x}" y="{_n(self.bottom + 15)}" stroke="none">{_text(number)}</text>'
        yield "</g>"

    def row(self, number: int) -> Iterator[str]:
        lane = self.lanes[number]
        start = self.timeline.start[lane.rank][lane.indices]
        end = self.timeline.end[lane.rank][lane.indices]
        yield f'<g class="rank" id="rank{lane.rank}{lane.name}">'
        yield from self.name(number)
        if len(start) and not lane.name:
            x, width = self.x(float(start[0])), float(end[-1] - start[0]) * self.scale
            y, height = _n(self.y(number)), _n(self.row_height(number))
            yield (
                f'<rect class="idle" x="{_n(x)}" y="{y}" width="{_n(width)}" height="{height}" '
                f'fill="{_IDLE}"/>'
            )
        is_wide = (end - start) * self.scale >= self.smallest
        yield from self.gathered(number, lane.indices[~is_wide & (end > start)])
        yield from self.ops(number, lane.indices[is_wide])
        yield "</g>"

    def name(self, number: int) -> Iterator[str]:
        """Write the name of a row, of copies only in which direction, where there is room."""
        lane, height = self.lanes[number], self.row_height(number)
        is_shown = lane.rank % math.ceil((_FONT + 1) / self.pitch) == 0
        if is_shown and (not lane.name or self.pitch * _OF_COPIES > _FONT):
            middle, text = _n(self.y(number) + height / 2 + 4), lane.name or f"rank {lane.rank}"
            faint = f' fill="{_FAINT}"' if lane.name else ""
            yield f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end"{faint}>{text}</text>'

    def ops(self, number: int, wide: Codes) -> Iterator[str]:
        """Draw the ops of a row that are wide enough, and write on them what fits."""
        schedule, texts, rank = self.timeline.schedule, [], self.lanes[number].rank
        starts, ends = self.timeline.start[rank].tolist(), self.timeline.end[rank].tolist()
        y, height = _n(self.y(number)), _n(self.row_height(number))
        baseline = _n(self.y(number) + self.row_height(number) / 2 + 4)
        for index in wide.tolist():
            op, start = schedule.op(schedule.orders[rank][index]), starts[index]
            x, width = self.x(start), (ends[index] - start) * self.scale
            turn = self.turn_of_stage[op.stage]
            yield (
                f'<rect class="op" x="{_n(x)}" y="{y}" width="{_n(width)}" height="{height}" '
                f'fill="url(#{op.kind.name}{turn % 2})" stroke="{_PANEL}" stroke-width=".6"/>'
            )
            whole = label(op, turn)
            kind = whole[: len(op.kind.name)]
            text = next((t for t in (whole, kind) if len(t) * _LETTER + 3 <= width), "")
            if text and self.row_height(number) > _FONT:
                place = f'x="{_n(x + width / 2)}" y="{baseline}"'
                texts.append(f"<text {place}>{_text(text)}</text>")
        if texts:
            yield '<g class="labels" text-anchor="middle">'
            yield from texts
            yield "</g>"

    def gathered(self, number: int, small: Codes) -> Iterator[str]:
        """Draw for each kind of the small ops, stacked, what share of the time it takes."""
        if not len(small):
            return
        num_cells = math.floor((self.width - _LEFT - _RIGHT) / self.smallest)
        cell = (self.width - _LEFT - _RIGHT) / num_cells
        edges = np.linspace(self.origin, self.origin + self.timeline.makespan, num_cells + 1)
        schedule, rank, height = (
            self.timeline.schedule,
            self.lanes[number].rank,
            self.row_height(number),
        )
        kinds, stages, _ = schedule.fields(schedule.orders[rank][small])
        odd = self.is_odd[stages]
        base: Floats = np.full(num_cells, self.y(number) + height)
        for kind, turn in self.styles:
            chosen = small[(kinds == kind) & (odd == turn)]
            start, end = self.timeline.start[rank][chosen], self.timeline.end[rank][chosen]
            shares = _busy(start, end, edges) * self.scale / cell
            heights: Floats = np.round(shares * height, 1)
            bars = "".join(_bars(base, heights, cell))
            base = base - heights
            if bars:
                yield f'<path class="gathered" fill="url(#{kind.name}{turn})" d="{bars}"/>'

    def legend(self, y: float) -> Iterator[str]:
        x = float(_LEFT)
        yield '<g class="legend">'
        for kind in dict.fromkeys(kind for kind, _ in self.styles):
            yield _swatch(x, y, f"url(#{kind.name}0)")
            text = f"{kind.name} {MEANINGS[kind]}"
            yield f'<text x="{_n(x + 20)}" y="{_n(y + 4)}">{text}</text>'
            x += 36 + len(text) * _LETTER
        yield _swatch(x, y, _IDLE)
        yield f'<text x="{_n(x + 20)}" y="{_n(y + 4)}">idle</text>'
        if any(odd for _, odd in self.styles):
            texts = [
                "lighter, lower case: every second stage of a rank",
                "lighter: every 2nd stage",
            ]
            if (num_turns := max(self.turn_of_stage.values()) + 1) > 2:
                marks = " ".join(styled("F", turn, "") for turn in range(min(num_turns, 4)))
                more = " ..." * (num_turns > 4)
                texts.insert(0, f"{marks}{more}: stages of a rank in order, every second lighter")
            room = self.width - x - 64
            text = next((each for each in texts if len(each) * _LETTER < room), "")
            yield f'<text x="{_n(x + 64)}" y="{_n(y + 4)}" fill="{_FAINT}">{text}</text>'
        yield "</g>"


def _busy(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Sum the time between neighbouring edges in which one of some ops runs."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    done = np.concatenate(([0.0], np.cumsum(end - start)))
    times = np.column_stack((start, end)).reshape(-1)
    total = np.interp(edges, times, np.column_stack((done[:-1], done[1:])).reshape(-1))
    return np.diff(total)


def _bars(base: Floats, heights: Floats, width: float) -> Iterator[str]:
    """Yield the outlines of bars that stand on a base, neighbours of one size as one."""
    ends = np.flatnonzero((np.diff(base) != 0) | (np.diff(heights) != 0)) + 1
    for first, end in zip([0, *ends.tolist()], [*ends.tolist(), len(base)], strict=True):
        if heights[first] > 0:
            across, up = _n((end - first) * width), _n(heights[first])
            yield f"M{_n(_LEFT + first * width)} {_n(base[first])}h{across}v-{up}h-{across}z"


def _pattern(kind: Kind, odd: int) -> str:
    hatch = _HATCHES[kind]
    lines = f'<path d="{hatch}" stroke="{_INK}" stroke-opacity=".22"/>' if hatch else ""
    return (
        f'<pattern id="{kind.name}{odd}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="{_fill(kind, odd)}"/>{lines}</pattern>'
    )


def _fill(kind: Kind, odd: int) -> str:
    """Give the colour of a kind, half way to white for every second stage of a rank."""
    channels = (int(COLORS[kind][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(c + 255) // 2 if odd else c:02x}" for c in channels)


def _swatch(x: float, y: float, fill: str) -> str:
    return f'<rect x="{_n(x)}" y="{_n(y - 6)}" width="14" height="12" fill="{fill}"/>'


def _round_step(length: float, most: float) -> float:
    """Choose 1, 2 or 5 times a power of ten so that at most so many steps fit a length."""
    if length <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(length / most))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= length / most)


def _text(text: str) -> str:
    """Escape a text, and replace what XML cannot hold."""
    return escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def _n(number: float) -> str:
    """Write a number of pixels, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
