"""How does the bubble over the memory look as text? A table, and points in a plane."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, repeat
from string import ascii_lowercase, ascii_uppercase

from zerobubble.ir import Placement
from zerobubble.search.sweep import Frontier, Point, bubble_of
from zerobubble.simulate import Timeline
from zerobubble.view.numbers import table

# Of placements; named schedules have small letters, in their order.
MARKS = {"linear": "L", "v": "V", "looped": "O", "wave": "W"}
_COLORS = {"L": "yellow", "V": "green", "O": "blue", "W": "magenta"}
_SEVERAL = "*"
_KEY = "= proved optimal for this placement and memory, < shortest time for this memory"

_LEAST_WIDTH = 30
# What the axis on the left takes, and room on the right for several marks at the last limit.
_MARGIN, _ROOM = 6, 4


def tabulate(frontier: Frontier) -> str:
    """Write a row for each memory limit with the bubble of every placement.

    ``=`` is proved optimal for the placement, ``<`` the shortest time of the row. Below ``bound``
    there is no schedule with any of these placements.

    >>> from zerobubble import Costs
    >>> from zerobubble.search import frontier
    >>> print(tabulate(frontier(Costs.of_ranks, 2, 4, memory=(2, 4))))
    memory  linear        v    looped:2    wave:4    bound
         2   7.69%=   0.00%=<     4.00%=    0.00%=<  0.00%
         3   0.00%=<  0.00%=<     0.00%=<   0.00%=<  0.00%
         4   0.00%=<  0.00%=<     0.00%=<   0.00%=<  0.00%
    = proved optimal for this placement and memory, < shortest time for this memory
    """
    places = frontier.placements
    rows = []
    for limit in frontier.limits:
        points = frontier.at(limit)
        cells = (_cell(frontier, points[place]) if place in points else "-  " for place in places)
        bound = min(point.bound_bubble for point in points.values())
        rows.append([f"{limit:.6g}", *cells, f"{bound:.2%}"])
    header = ["memory", *(f"{place}  " for place in places), "bound"]
    return "\n".join([table(header, rows, left=0), _KEY])


def tabulate_named(frontier: Frontier) -> str:
    """Write a row for each named schedule with its mark in ``draw``, its memory and its bubble."""
    rows = [
        [
            mark,
            timeline.schedule.name,
            str(timeline.schedule.placement),
            f"{timeline.peak_memory:.6g}",
            f"{bubble_of(timeline, frontier.objective):.2%}",
        ]
        for mark, timeline in _marked(frontier)
    ]
    return table(["", "schedule", "placement", "memory", "bubble"], rows, left=3)


def draw(frontier: Frontier, width: int = 80, height: int = 16, color: bool = False) -> str:
    """Draw the bubble over the memory limit: a letter for each placement and named schedule.

    Marks that share a place stand side by side from it to the right; ``*`` stands for those for
    which there is no room. Named schedules that need more than the largest limit are not drawn.

    Args:
        frontier: what to draw.
        width: number of columns.
        height: number of rows of the plane.
        color: whether to colour the marks with terminal codes.

    >>> from zerobubble import Costs
    >>> from zerobubble.search import frontier
    >>> found = frontier(Costs.of_ranks, 2, 4, memory=(2, 4))
    >>> print(draw(found, width=50, height=8))
     20% |h                                       g
         |
         |i
     11% |k         c                             a
         |Lm             l
         |
      3% |Odej      b
      0% |VWo                 LVOWn               LVOW
         +--------------------------------------------
          2                   3                   4
    L linear  V v  O looped:2  W wave:4
    """
    plane = _Plane(frontier, max(width, _LEAST_WIDTH), max(height, 2))
    lines = [plane.line(row, color) for row in range(plane.height)]
    axis = " " * (_MARGIN - 1) + "+" + "-" * plane.num_columns
    legend = [f"{mark} {place}" for place, mark in marks(frontier).items()]
    if any(_SEVERAL in text for row in plane.groups.values() for text in row.values()):
        legend.append(f"{_SEVERAL} more")
    return "\n".join(line.rstrip() for line in [*lines, axis, plane.ticks(), "  ".join(legend)])


def marks(frontier: Frontier) -> dict[Placement, str]:
    """Give every placement its letter."""
    found: dict[Placement, str] = {}
    for place in frontier.placements:
        usual = MARKS[str(place).partition(":")[0]]
        found[place] = next(mark for mark in usual + ascii_uppercase if mark not in found.values())
    return found


@dataclass(frozen=True)
class _Plane:
    """Where each bubble and memory falls, in rows and columns."""

    frontier: Frontier
    width: int
    height: int

    @property
    def num_columns(self) -> int:
        return self.width - _MARGIN

    @cached_property
    def points(self) -> list[tuple[float, float, str]]:
        """Memory, bubble and mark of all points, placements first."""
        letters, limits = marks(self.frontier), self.frontier.limits
        found = [
            (each.memory, each.bubble, letters[each.placement]) for each in self.frontier.points
        ]
        for mark, timeline in _marked(self.frontier):
            if limits[0] <= timeline.peak_memory <= limits[-1]:
                bubble = bubble_of(timeline, self.frontier.objective)
                found.append((timeline.peak_memory, bubble, mark))
        return found

    @cached_property
    def top(self) -> float:
        """Bubble of the highest row: a multiple of 5%."""
        return max(1, math.ceil(max(bubble for _, bubble, _ in self.points) * 20 - 1e-9)) / 20

    def row(self, bubble: float) -> int:
        return self.height - 1 - round(bubble / self.top * (self.height - 1))

    def column(self, memory: float) -> int:
        low, *_, high = *self.frontier.limits, self.frontier.limits[-1]
        share = (memory - low) / (high - low) if high > low else 0.0
        return round(share * (self.num_columns - _ROOM))

    @cached_property
    def groups(self) -> dict[int, dict[int, str]]:
        """The marks of each row by the column where they begin, cut to the room there is."""
        rows: dict[int, dict[int, str]] = {row: {} for row in range(self.height)}
        for memory, bubble, mark in self.points:
            row, column = rows[self.row(bubble)], self.column(memory)
            row[column] = row.get(column, "") + mark
        for row in rows.values():
            for start, end in pairwise([*sorted(row), self.num_columns]):
                if len(row[start]) > end - start:
                    row[start] = row[start][: end - start - 1] + _SEVERAL
        return rows

    def line(self, row: int, color: bool) -> str:
        text, position = self.label(row), 0
        for start, group in sorted(self.groups[row].items()):
            text += " " * (start - position) + (_painted(group) if color else group)
            position = start + len(group)
        return text

    def label(self, row: int) -> str:
        """Write the bubble of every third row beside the axis."""
        last = self.height - 1
        bubble = self.top * (last - row) / last
        label = f"{bubble:.0%}" if row % 3 == 0 or row == last else ""
        return f"{label:>{_MARGIN - 2}} |"

    def ticks(self) -> str:
        """Write the limits under their columns, as far as there is room."""
        text = ""
        for limit in self.frontier.limits:
            label, column = f"{limit:.4g}", self.column(limit) + _MARGIN
            if not text or column > len(text):
                text = text.ljust(column) + label
        return text


def _marked(frontier: Frontier) -> Iterator[tuple[str, Timeline]]:
    return zip(chain(ascii_lowercase, repeat("?")), frontier.named, strict=False)


def _cell(frontier: Frontier, point: Point) -> str:
    proved, best = point.is_proved_optimal, frontier.is_best(point)
    return f"{point.bubble:.2%}{'=' if proved else ' '}{'<' if best else ' '}"


def _painted(group: str) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    return "".join(
        Style(color=_COLORS.get(mark), bold=True).render(mark, color_system=ColorSystem.EIGHT_BIT)
        for mark in group
    )
