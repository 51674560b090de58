"""Is every point of a frontier drawn where it lies, within the width?

What is searched here is proved optimal, so the pictures depend on no search.
"""

import re

import pytest

from tests.view.test_text import check_golden
from zerobubble.costs import Costs
from zerobubble.ir import linear, wave
from zerobubble.schedules import build
from zerobubble.search.sweep import Frontier, Point, frontier
from zerobubble.simulate import simulate
from zerobubble.view.frontier import draw, marks, tabulate, tabulate_named

PLANE = re.compile(r"^.{5}\|(?P<points>.*)$")


@pytest.fixture(scope="module")
def found():
    return frontier(Costs.of_ranks, 4, 8, memory=(4, 8))


def timeline_of(name, m=8):
    schedule = build(name, 4, m)
    return simulate(schedule, Costs.of_ranks(schedule.placement))


def plane(picture):
    """Give the rows of the plane without the axis."""
    return [match["points"] for line in picture.splitlines() if (match := PLANE.match(line))]


def frontier_of(*points, named=()):
    """Make a frontier of pairs of a memory limit and a schedule's name."""
    made = [
        Point(timeline.schedule.placement, memory, timeline, "span", timeline.span - 1)
        for memory, timeline in ((memory, timeline_of(name)) for memory, name in points)
    ]
    return Frontier("span", tuple(made), tuple(map(timeline_of, named)), {})


def test_the_table_and_the_picture(found):
    check_golden("frontier", f"{tabulate(found)}\n\n{draw(found)}\n\n{tabulate_named(found)}")


@pytest.mark.parametrize("width", [1, 30, 45, 80, 133])
@pytest.mark.parametrize("height", [1, 4, 20])
def test_the_picture_fits(found, width, height):
    lines = draw(found, width, height).splitlines()
    assert max(map(len, lines[:-1])) <= max(width, 30)
    assert len(plane("\n".join(lines))) == max(height, 2)


def test_points_lie_where_their_memory_and_bubble_are():
    """The bubbles of 1f1b, zb-h1 and zb-h2 are 27.3%, 11.1% and 0, and the axis ends at 30%."""
    rows = plane(draw(frontier_of((2, "1f1b"), (4, "zb-h1"), (6, "zb-h2")), width=36, height=16))
    places = {(row, text.index("L")) for row, text in enumerate(rows) if "L" in text}
    assert places == {(1, 0), (9, 13), (15, 26)}


def test_marks_that_share_a_place_stand_side_by_side(found):
    picture = draw(found)
    assert plane(picture)[-1].split() == ["VWo", "VW", "VOW", "LVOWn", "LVOW"]
    assert "* more" not in picture


def test_marks_without_room_become_a_star():
    picture = draw(frontier_of((4, "1f1b"), (7, "zb-h2"), named=["zb-h2"] * 30), width=30)
    assert plane(picture)[-1].endswith("Lab*")
    assert picture.endswith("L linear  * more")


def test_a_named_schedule_outside_the_limits_is_only_in_the_legend():
    some = frontier_of((3, "zb-h1"), (5, "zb-h1"), named=("zb-h1", "gpipe"))
    assert "a" in "".join(plane(draw(some)))
    assert "b" not in "".join(plane(draw(some)))
    assert tabulate_named(some).splitlines()[-1].split() == ["b", "gpipe", "linear", "8", "27.27%"]


def test_a_placement_that_cannot_run_has_no_cell():
    both = frontier_of((2, "v-min"), (4, "zb-h1"), (4, "zb-v"))
    assert both.placements == [wave(4, 2), linear(4)]
    rows = [line.split() for line in tabulate(both).splitlines()]
    assert rows[1:3] == [
        ["2", "18.64%", "<", "-", "15.79%"],
        ["4", "0.00%", "<", "11.11%", "0.00%"],
    ]


def test_placements_of_one_rank_have_letters_of_their_own():
    letters = marks(frontier(Costs.of_ranks, 1, 1))
    assert [*letters.values()] == ["L", "O", "A"]


def test_colours_only_when_asked(found):
    colored = draw(found, color=True)
    assert "\033" in colored
    assert "\033" not in draw(found)
    assert re.sub(r"\033\[[0-9;]*m", "", colored) == draw(found)
