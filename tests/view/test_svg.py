"""Does the vector picture show every op where it runs, whatever the names and numbers?"""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, measured_runs, schedules
from zerobubble.costs import Costs
from zerobubble.ir import BW, F, Kind, L, O, R, Schedule, linear
from zerobubble.schedules import build
from zerobubble.simulate import Timeline, simulate
from zerobubble.view.svg import draw_svg

SVG = "{http://www.w3.org/2000/svg}"
SUMMARY = "span 27 ms, bubble 11.1%, peak memory 4"
NS = {"": SVG.strip("{}")}


def parse(timeline, **options):
    return ElementTree.fromstring(draw_svg(timeline, **options))


def timeline_of(name, num_ranks=4, num_microbatches=8):
    schedule = build(name, num_ranks, num_microbatches)
    return simulate(schedule, Costs.of_ranks(schedule.placement))


def rects(root, kind="op"):
    """Give x, y, width, height and fill of all rectangles of a class."""
    return [
        (*(float(r.get(key)) for key in ("x", "y", "width", "height")), r.get("fill"))
        for r in root.iter(f"{SVG}rect")
        if r.get("class") == kind
    ]


def check_positions(timeline):
    """Find every op of a timeline without narrow ones as one rectangle, at its time on its row."""
    root = parse(timeline)
    span = max(float(end[-1]) for end in timeline.end) - min(float(s[0]) for s in timeline.start)
    origin = min(float(start[0]) for start in timeline.start)
    for rank, (start, end) in enumerate(zip(timeline.start, timeline.end, strict=True)):
        row = root.find(f".//g[@id='rank{rank}']", NS)
        found = rects(row)
        kinds, stages, _ = timeline.schedule.fields(timeline.schedule.orders[rank])
        held = timeline.schedule.placement.stages_of(rank)
        assert [fill for *_, fill in found] == [
            f"url(#{Kind(kind).name}{held.index(stage) % 2})"
            for kind, stage in zip(kinds, stages, strict=True)
        ]
        x, y, width, height = np.array([rect[:4] for rect in found]).T
        np.testing.assert_allclose(x, 58 + (start - origin) * 886 / span, atol=0.006)
        np.testing.assert_allclose(width, (end - start) * 886 / span, atol=0.006)
        assert set(y) == {34 + 30 * rank}
        assert set(height) == {24}
        ((x, y, width, height, _),) = rects(row, "idle")
        assert (y, height) == (34 + 30 * rank, 24)
        assert x == pytest.approx(58 + (start[0] - origin) * 886 / span, abs=0.006)
        assert width == pytest.approx((end[-1] - start[0]) * 886 / span, abs=0.006)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "interleaved:v=3"])
def test_every_op_is_a_rectangle_at_its_time_on_the_row_of_its_rank(name):
    check_positions(timeline_of(name))


def test_a_measured_timeline_begins_at_the_left():
    timeline = timeline_of("zb-h1", 2, 2)
    later = [tuple(times + 1e6 for times in side) for side in (timeline.start, timeline.end)]
    check_positions(Timeline(timeline.schedule, timeline.costs, *later))


def test_labels_name_kind_and_microbatch_where_there_is_room():
    def labels(width):
        root = parse(timeline_of("zb-v", 2, 4), width=width)
        return [t.text for t in root.findall(".//g[@class='labels']/text", NS)][:8]

    assert labels(960) == ["F0", "F1", "F2", "f0", "b0", "w0", "f1", "b1"]
    assert labels(340) == ["F", "F", "F", "f", "b", "w", "f", "b"]
    assert labels(200) == []


def test_kinds_differ_without_colour():
    root = parse(timeline_of("zb-v"))
    patterns = {
        p.get("id"): [path.get("d") for path in p.iter(f"{SVG}path")]
        for p in root.iter(f"{SVG}pattern")
    }
    assert sorted(patterns) == ["B0", "B1", "F0", "F1", "W0", "W1"]
    assert patterns["F0"] == []
    assert patterns["B0"] != patterns["W0"] != []


def test_the_axis_has_round_numbers_and_the_unit():
    timeline = timeline_of("1f1b")
    texts = parse(timeline, unit="ms").findall(".//g[@class='axis']/text", NS)
    assert [t.text for t in texts] == ["0", "5", "10", "15", "20", "25", "30 ms"]
    x = [float(t.get("x")) for t in texts]
    np.testing.assert_allclose(x, 58 + np.arange(0, 31, 5) * 886 / 33, atol=0.006)


def test_title_summary_and_description_tell_the_numbers():
    root = parse(timeline_of("zb-h1"), unit="ms")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"
    assert root.find("title", NS).text == "zb-h1: 4 ranks, 8 microbatches"
    assert root.find("text[@class='title']", NS).text == "zb-h1: 4 ranks, 8 microbatches"
    assert root.find("text[@class='summary']", NS).text == SUMMARY
    assert root.find("desc", NS).text.startswith(
        f"One row for each rank, time from left to right. {SUMMARY}, makespan 27. "
        "Idle: rank 0 11.1%, rank 1 7.7%, rank 2 4.0%, rank 3 0.0%. "
    )


@given(st.text())
def test_any_name_is_shown_as_text(name):
    timeline = timeline_of("1f1b", 1, 1)
    renamed = Timeline(
        timeline.schedule.renamed(name), timeline.costs, timeline.start, timeline.end
    )
    root = parse(renamed)
    assert {element.tag for element in root.iter()} == {
        SVG + tag
        for tag in ("svg", "title", "desc", "defs", "pattern", "rect", "path", "text", "g")
    }


def test_markup_in_a_name_is_escaped():
    name = '<script>alert(1)</script> & "it\'s" \x00'
    root = parse(timeline_of("1f1b", 1, 1), title=name)
    assert root.find("title", NS).text == name.replace("\x00", "\ufffd")
    assert root.find("text[@class='title']", NS).text == name.replace("\x00", "\ufffd")


def gathered_area(root):
    """Add up the areas of all bars, by the pattern that fills them."""
    areas = {}
    for path in root.iter(f"{SVG}path"):
        if path.get("class") == "gathered":
            bars = re.findall(r"h([\d.]+)v-([\d.]+)h-", path.get("d"))
            area = sum(float(across) * float(up) for across, up in bars)
            areas[path.get("fill")] = areas.get(path.get("fill"), 0) + area
    return areas


def test_ops_below_a_pixel_are_gathered_in_bars_of_their_share():
    timeline = timeline_of("zb-h1", 4, 600)
    root = parse(timeline)
    assert rects(root) == []
    scale, height = 886 / timeline.makespan, 24
    areas = gathered_area(root)
    assert set(areas) == {"url(#F0)", "url(#B0)", "url(#W0)"}
    for area in areas.values():
        assert area == pytest.approx(4 * 600 * scale * height, rel=0.01)
    for rank in range(4):
        check_stacked(root.find(f".//g[@id='rank{rank}']", NS), 34 + 30 * rank, height)


def check_stacked(row, top, height):
    """Find the bars of every cell standing on one another, from the floor of the row."""
    floor = np.full(886, top + height, dtype=float)
    for path in row.findall("path", NS):
        bars = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v-([\d.]+)h-", path.get("d"))
        for x, y, across, up in (map(float, bar) for bar in bars):
            cells = slice(round(x - 58), round(x - 58 + across))
            np.testing.assert_allclose(floor[cells], y, atol=0.011)
            floor[cells] = y - up
    assert floor.min() >= top - 0.2


def test_the_file_stays_small_however_many_ops_there_are():
    schedule = build("zb-h1", 64, 512)
    picture = draw_svg(simulate(schedule, Costs.uniform(64, b=1.1, transfer=0.1)))
    assert schedule.num_ops == 98304
    assert len(picture) < 1_000_000
    ElementTree.fromstring(picture)


@given(schedules().flatmap(lambda s: st.tuples(st.just(s), costs_for(s.num_stages))))
def test_any_timeline_is_drawn_the_same_twice(pair):
    timeline = simulate(*pair)
    picture = draw_svg(timeline)
    assert picture == draw_svg(timeline)
    assert "nan" not in picture
    root = ElementTree.fromstring(picture)
    for x, y, width, height, _ in rects(root) + rects(root, "idle"):
        assert 58 <= x <= x + width <= 944.02
        assert 34 <= y <= y + height <= float(root.get("height"))


@given(measured_runs())
def test_any_measured_step_is_drawn(run):
    for step in run.steps:
        ElementTree.fromstring(draw_svg(step.timeline, unit="ms"))


def test_ranks_beyond_what_fits_are_named_now_and_then():
    schedule = build("1f1b", 400, 1)
    root = parse(simulate(schedule, Costs.of_ranks(linear(400))))
    names = [t.text for t in root.iter(f"{SVG}text") if (t.text or "").startswith("rank ")]
    assert names[:3] == ["rank 0", "rank 4", "rank 8"]
    assert float(root.get("height")) < 1400


def test_copies_lie_in_lower_rows_beneath_their_rank():
    ops = [F(0, 0), O(0, 0), F(0, 1), R(0, 1), L(0, 0), BW(0, 0), BW(0, 1)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    timeline = simulate(schedule, Costs.uniform(1).with_bandwidth(0.5))
    root = parse(timeline)
    found = [rects(root.find(f".//g[@id='rank0{name}']", NS)) for name in ("", "out", "in")]
    computed, ((x, y, width, height, fill),), (back,) = found
    assert [fill for *_, fill in computed] == [
        f"url(#{kind}0)" for kind in ("F", "F", "R", "BW", "BW")
    ]
    assert (fill, back[-1]) == ("url(#O0)", "url(#L0)")
    scale = 886 / timeline.makespan
    np.testing.assert_allclose((x, width), (58 + scale, 2 * scale), atol=0.01)
    assert computed[0][1] + computed[0][3] < y < y + height < back[1]
    assert height == pytest.approx(0.6 * computed[0][3])


@pytest.mark.parametrize(
    ("name", "width", "text"),
    [
        ("zb-v", 960, "lighter, lower case: every second stage of a rank"),
        ("interleaved:v=4", 960, "F f F' f': stages of a rank in order, every second lighter"),
        ("interleaved:v=6", 960, "F f F' f' ...: stages of a rank in order, every second lighter"),
        ("interleaved:v=4", 560, "lighter: every 2nd stage"),
    ],
)
def test_the_legend_names_the_shades_of_all_stages_of_a_rank(name, width, text):
    assert draw_svg(timeline_of(name), width=width).rpartition("</text>")[0].endswith(f">{text}")
