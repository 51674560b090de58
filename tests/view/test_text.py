"""Does the picture show every op where it runs, and fit where it must?

The pictures are kept in ``tests/golden``; to accept new ones, delete the old and run the tests.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, costs_of_copies_for, schedules, schedules_with_copies
from zerobubble.costs import Costs
from zerobubble.ir import BW, F, L, O, Placement, R, Schedule, linear
from zerobubble.schedules import REGISTRY, build
from zerobubble.simulate import Timeline, simulate
from zerobubble.view.lanes import rows_of
from zerobubble.view.numbers import summarize
from zerobubble.view.text import draw

GOLDEN = Path(__file__).parents[1] / "golden"


def check_golden(name, text):
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(text + "\n", encoding="utf-8")
        pytest.fail(f"{path.name} was missing and has been written: look at it, then run again")
    assert text + "\n" == path.read_text(encoding="utf-8")


def timeline_of(name, num_ranks=4, num_microbatches=8, times=(1, 1, 1, 0)):
    schedule = build(name, num_ranks, num_microbatches)
    return simulate(schedule, Costs.of_ranks(schedule.placement, *times))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_schedule_has_its_picture(name):
    timeline = timeline_of(name)
    check_golden(name, f"{draw(timeline)}\n{summarize(timeline)}")


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_pictures_fit_the_width(width):
    picture = draw(timeline_of("zb-h2", num_microbatches=12, times=(18.5, 18, 9.3, 2)), width)
    check_golden(f"zb-h2-width-{width}", picture)
    assert all(len(line) <= width for line in picture.splitlines()[:-1])


def test_stages_of_a_rank_differ():
    check_golden("interleaved-v3", draw(timeline_of("interleaved:v=3", 2, 4)))


def test_ranks_may_hold_different_numbers_of_stages():
    placement = Placement((0, 1, 1))
    orders = [[F(0, 0), BW(0, 0)], [F(1, 0), F(2, 0), BW(2, 0), BW(1, 0)]]
    schedule = Schedule.from_ops("uneven", placement, 1, orders)
    check_golden("uneven", draw(simulate(schedule, Costs.uniform(3, transfer=1))))


def moved_timeline():
    schedule = build("po-h", 4, 8)
    return simulate(schedule, Costs.of_ranks(schedule.placement).with_bandwidth(1.25))


def test_copies_have_rows_of_their_own():
    timeline = moved_timeline()
    check_golden("po-h-copies", f"{draw(timeline)}\n{summarize(timeline)}")


def test_copies_stand_beneath_the_ops_that_they_run_beside():
    ops = [F(0, 0), F(0, 1), O(0, 0), R(0, 1), L(0, 0), BW(0, 1), BW(0, 0)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    costs = Costs.uniform(1).with_bandwidth(0.5)
    assert draw(simulate(schedule, costs)).splitlines() == [
        "rank 0     |F0|F1|..|R1|BW1  |BW0  |",
        "rank 0 out    |O0   |",
        "rank 0 in              |L0   |",
        "F forward, BW both gradients, O copy to the host, L copy back, R forward again, . idle",
    ]
    free = draw(simulate(schedule, Costs.uniform(1)))
    assert free.splitlines()[1] == (
        "F forward, BW both gradients, R forward again, copies take no time"
    )


@given(schedules_with_copies(), st.data(), st.none() | st.integers(20, 200))
def test_any_timeline_with_copies_is_drawn(schedule, data, width):
    timeline = simulate(schedule, data.draw(costs_of_copies_for(schedule.num_stages)))
    rows = draw(timeline, width).splitlines()[:-1]
    lanes = rows_of(timeline)
    names = [f"rank {lane.rank} {lane.name}".strip() for lane in lanes]
    assert [row[: len(name)] for row, name in zip(rows, names, strict=True)] == names
    if width is not None:
        assert all(len(row) <= max(width, 14) for row in rows)


def test_colours_only_when_asked():
    timeline = timeline_of("zb-h1", num_microbatches=2)
    colored = draw(timeline, color=True)
    check_golden("zb-h1-color", colored)
    assert "\033" not in draw(timeline)
    assert re.sub(r"\033\[[0-9;]*m", "", colored) == draw(timeline)


def test_a_measured_timeline_is_drawn_from_its_first_op():
    schedule = Schedule.from_ops("mine", linear(2), 1, [[F(0, 0), BW(0, 0)], [F(1, 0), BW(1, 0)]])
    starts = (np.array([1e9, 1e9 + 50]), np.array([1e9 + 10, 1e9 + 21]))
    ends = (np.array([1e9 + 10, 1e9 + 70]), np.array([1e9 + 20, 1e9 + 50]))
    picture = draw(Timeline(schedule, Costs.uniform(2), starts, ends))
    assert picture.splitlines() == [
        "rank 0 |F0|...........|BW0  |",
        "rank 1    |F0|BW0     |",
        "F forward, BW both gradients, . idle",
    ]


def test_one_very_short_op_does_not_stretch_the_picture():
    costs = Costs.uniform(1, f=1e-6, b=1, w=1)
    picture = draw(simulate(build("zb-h1", 1, 4), costs))
    assert max(map(len, picture.splitlines())) < 80


def test_free_ops_can_be_drawn():
    assert draw(timeline_of("1f1b", 2, 2, (0, 0, 0, 0))).splitlines()[:2] == [
        "rank 0 |",
        "rank 1 |",
    ]


@given(schedules(), st.data(), st.none() | st.integers(0, 200))
def test_any_timeline_is_drawn(schedule, data, width):
    timeline = simulate(schedule, data.draw(costs_for(schedule.num_stages)))
    *rows, legend = draw(timeline, width).splitlines()
    assert len(rows) == schedule.num_ranks
    assert all(row.startswith(f"rank {rank}") for rank, row in enumerate(rows))
    if width is None:
        assert "cut at" not in legend
    else:
        assert all(len(row) <= max(width, 9) for row in rows)
        assert ("cut at" in legend) == any(row.endswith(">") for row in rows)


@given(schedules())
def test_every_op_is_named_in_its_order(schedule):
    """At equal times and the natural width every label is complete."""
    timeline = simulate(schedule, Costs.uniform(schedule.num_stages))
    for rank, row in enumerate(draw(timeline).splitlines()[:-1]):
        shown = [cell.upper() for cell in re.findall(r"[A-Za-z]+\d+", row.partition("|")[2])]
        assert shown == [f"{op.kind.name}{op.microbatch}" for op in schedule.ops(rank)]


def test_the_summary_tells_all_numbers():
    assert summarize(timeline_of("zb-h2")).splitlines() == [
        "span 24, bubble 0.0%",
        "makespan 27, bubble 11.1%",
        "peak memory 7",
        "idle by rank: 0 0 0 0",
        "peak memory by rank: 7 7 7 7",
    ]


def test_a_folded_picture_has_every_column_of_the_full_one():
    timeline = simulate(build("zb-h1", 4, 8), Costs.uniform(4))
    *full, legend = draw(timeline).splitlines()
    *folded, same_legend = draw(timeline, width=40, fold=True).splitlines()
    assert same_legend == legend
    assert max(map(len, folded)) <= 40
    name = len("rank 0 ")
    for rank, row in enumerate(full):
        pieces = [line[name:].ljust(40 - name) for line in folded[rank::4]]
        assert "".join(pieces).rstrip() == row[name:]
