"""Does the page show the right things to eye, pointer, keyboard and screen reader?"""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.view.browser import draw, pixel, point, rows, state, terms
from tests.view.pretended import delayed, measured_of
from zerobubble.cli._resolve import resolve
from zerobubble.costs import Costs
from zerobubble.formats.timeline import save
from zerobubble.ir import BW, B, F, W
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.view.facts import Facts
from zerobubble.view.html import MARK, Measured, Panel, write_page

pytestmark = pytest.mark.timeout(120)

TIMES = {"f": 1, "b": 1, "w": 1, "transfer": 0.25}
# Of every run of every panel, for each rank the pairs of cause and time.
IDLE = """zerobubble.viewer.panels.map((panel) => panel.runs.map(({ facts }) =>
  zerobubble.idleByCause(facts).map((pairs) =>
    pairs.map(([cause, time]) => [zerobubble.causeName(panel.schedule, cause), time]))))"""
OPS, COLUMNS = "zerobubble.viewer.stats.ops", "zerobubble.viewer.stats.columns"


def panel_of(name="zb-h1", p=4, m=8, limit=4.0, **times):
    schedule = build(name, p, m)
    costs = Costs.of_ranks(schedule.placement, **(TIMES | times))
    return Panel(schedule, costs, None if limit is None else [limit] * p)


def timeline_of(panel):
    return simulate(panel.schedule, panel.costs)


def index_of(panel, op):
    return int(Facts(timeline_of(panel)).index_of[panel.schedule.code(op)])


def hash_of(page):
    page.wait_for_timeout(300)
    return page.evaluate("location.hash")


def test_hover_tells_all_about_an_op(open_page):
    panel = panel_of()
    page = open_page(panel)
    page.mouse.move(*point(page, index_of(panel, F(1, 0))))
    assert terms(page, "#tip") == {
        "op": "F0 of stage 1, microbatch 0",
        "rank": "1",
        "time": "1.25 to 2.25, takes 1",
        "waited for": "its input from F0 of stage 0 on rank 0: idle 1.25, transfer 0.25 of it",
        "slack": "0 in the step, 0 in the span",
        "memory": "0 before, 1 after (limit 4)",
    }
    page.mouse.move(*point(page, index_of(panel, W(3, 0))))
    found = terms(page, "#tip")
    assert found["waited for"] == "its turn after B3 of stage 3, its input was there 7 before"
    assert found["memory"] == "4 before, 3 after (limit 4)"
    assert found["slack"] == "0.5 in the step, 0.5 in the span"
    page.mouse.move(*point(page, index_of(panel, W(3, 7))))
    assert terms(page, "#tip")["slack"] == "0.75 in the step, 4.5 in the span"
    page.mouse.move(5, 5)
    assert page.is_hidden("#tip")


def test_hover_tells_why_a_rank_is_idle(open_page):
    page = open_page(panel_of())
    x, y = point(page, 3)
    scale = page.evaluate("zerobubble.viewer.layout().scale")
    page.mouse.move(x + 1.5 * scale, y)
    assert terms(page, "#tip") == {
        "idle": "memory limit",
        "rank": "0",
        "time": "4 to 8.25, takes 4.25",
        "share": "14.2% of the makespan",
    }
    page.mouse.move(x + 4.9 * scale, y)
    assert terms(page, "#tip")["idle"] == "transfer"
    page.mouse.click(x + 4.9 * scale, y)
    assert state(page, "selected") is None


def test_a_click_lights_up_the_way_of_the_microbatch(open_page):
    panel = panel_of(limit=None)
    page = open_page(panel)
    chosen, other = (index_of(panel, op) for op in (F(2, 1), F(2, 5)))
    plain = pixel(page, *point(page, other))
    page.mouse.click(*point(page, chosen))
    assert state(page, "selected") == {"panel": 0, "run": 0, "op": chosen}
    way = page.evaluate(
        f"zerobubble.wayOfMicrobatch(zerobubble.viewer.panels[0].schedule, {chosen})"
    )
    stages = range(4)
    ops = [F(s, 1) for s in stages] + [B(s, 1) for s in reversed(stages)]
    assert way == [index_of(panel, op) for op in [*ops, *(W(s, 1) for s in stages)]]
    draw(page)
    x, y = point(page, chosen)
    assert pixel(page, x + 12, y + 9) == [255, 179, 71]
    assert pixel(page, *point(page, other)) != plain
    assert terms(page, "#selection")["op"] == "F1 of stage 2, microbatch 1"
    page.keyboard.press("Escape")
    assert state(page, "selected") is None


def test_key_c_shows_the_critical_path_and_its_split(open_page):
    panel = panel_of()
    page = open_page(panel)
    page.keyboard.press("c")
    assert state(page, "critical")
    path = page.evaluate("zerobubble.viewer.panels[0].planned.facts.path")
    timeline = timeline_of(panel)
    assert path == [index_of(panel, timed.op) for timed in timeline.critical_path()]
    split = "27 ops: compute 27 (90.0%), transfer 3 (10.0%), wait 0 (0.0%)"
    assert page.inner_text("#critical .split") == split
    assert page.get_attribute("#toggle-critical", "aria-pressed") == "true"


def test_idle_time_and_summary_equal_the_command_line(open_page, zerobubble):
    names = ("1f1b", "zb-h1", "zb-v")
    page = open_page(*(Panel(*resolve(name, 4, 8, "1,1.1,.9,.1"), [4.0] * 4) for name in names))
    flags = ("-p", 4, "-m", 8, "--costs", "1,1.1,.9,.1", "--memory", 4)
    table = zerobubble("compare", *names, *flags).out.splitlines()
    assert [" ".join(row) for row in rows(page, "#summary")] == [
        " ".join(line.split()) for line in table[1:]
    ]
    shown = [runs[0] for runs in page.evaluate(IDLE)]
    for name, idle in zip(names, shown, strict=True):
        found = json.loads(zerobubble("show", name, *flags, "--json").out)["idle"]
        assert [*map(dict, idle)] == [pytest.approx(causes) for causes in found]
    warm_up = next(row for row in rows(page, "#idle") if row[0] == "warm-up")
    assert warm_up[2] == "6.6 (5.7%)"


def test_sliders_simulate_again(open_page, zerobubble):
    page = open_page(panel_of(limit=None))
    for name, value in (("F", 2), ("W", 0.5), ("comm", 3), ("kept", 0.5)):
        page.fill(f"#factor-{name}", str(value))
    found = rows(page, "#summary")[0]
    flags = ("-p", 4, "-m", 8, "--costs", "2,1,.5,.75,.5")
    assert found == zerobubble("compare", "zb-h1", *flags).out.splitlines()[1].split()
    assert page.inner_text(".slider:nth-child(1) output") == "× 2"
    page.click("#neutral")
    assert rows(page, "#summary")[0][1] == "30"


def test_without_transfers_their_slider_counts_in_forwards(open_page, zerobubble):
    page = open_page(panel_of(limit=None, transfer=0, f=2))
    assert page.inner_text(".slider:nth-child(4) output") == "0 F"
    page.fill("#factor-comm", "0.5")
    flags = ("-p", 4, "-m", 8, "--costs", "2,1,1,1")
    expected = zerobubble("compare", "zb-h1", *flags).out.splitlines()[1].split()
    assert rows(page, "#summary")[0] == expected


def test_planned_over_measured(open_page):
    """One op started 5 later than it could: it lost that, and the others lost nothing."""
    panel = panel_of(limit=None)
    code = panel.schedule.code(B(2, 1))
    timeline = delayed(timeline_of(panel), code, 5.0)
    page = open_page(replace(panel, measured=Measured(17, timeline), unit="ms"))
    summary = rows(page, "#summary")
    assert [row[0] for row in summary] == ["zb-h1, planned", "zb-h1, measured"]
    assert summary[1][1:3] == [f"{timeline.span:.6g}", f"{timeline.bubble:.2%}"]
    assert rows(page, "#lost") == [["B1 of stage 2", "2", "1", "1", "5", "5"]]
    op = index_of(panel, B(2, 1))
    (x, above), (measured_x, below) = (point(page, op, run=run) for run in (0, 1))
    assert 0 < below - above < 25
    assert measured_x - x == pytest.approx(5 * page.evaluate("zerobubble.viewer.layout().scale"))
    page.mouse.move(measured_x, below)
    found = terms(page, "#tip")
    assert found["lost"] == "5 ms against the plan"
    assert found["late"] == "started 5 ms after it could"
    page.mouse.move(x, above)
    assert "lost" not in terms(page, "#tip")


def test_four_schedules_share_one_axis(open_page):
    panels = [panel_of(name, limit=None) for name in ("1f1b", "zb-h1", "zb-h2", "zb-v")]
    page = open_page(*panels)
    scale = page.evaluate("zerobubble.viewer.layout().scale")
    longest = max(timeline_of(panel).makespan for panel in panels)
    assert scale == pytest.approx(
        (page.evaluate("zerobubble.viewer.layout().width") - 104) / longest
    )
    xs = [point(page, 0, panel=number)[0] for number in range(4)]
    middles = [float(timeline_of(panel).end[0][0]) / 2 for panel in panels]
    assert np.diff(xs) == pytest.approx(np.diff(middles) * scale)


def test_the_hash_restores_what_was_seen(open_page):
    page = open_page(panel_of())
    page.evaluate("zerobubble.viewer.show(3, 9)")
    page.mouse.click(*point(page, 3))
    page.fill("#factor-B", "1.5")
    page.click("#toggle-memory")
    page.click("#theme")
    seen = page.evaluate("({ ...zerobubble.viewer.state, hovered: null })")
    assert hash_of(page) == "#t=3,9&op=0,0,3&memory=0&B=1.5&theme=dark"
    page.reload()
    assert page.evaluate("zerobubble.viewer.state") == seen
    assert page.input_value("#factor-B") == "1.5"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("location.hash = '#t=4,5'")
    page.wait_for_function("zerobubble.viewer.state.window?.from === 4")
    assert state(page, "selected") is None


def test_the_keyboard_reaches_everything(open_page):
    page = open_page(panel_of())
    page.focus("#theme")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") in ("timeline", "scroller")
    page.focus("#timeline")
    for _ in range(3):
        page.keyboard.press("Tab")
    assert state(page, "selected.op") == 2
    page.keyboard.press("Shift+Tab")
    assert terms(page, "#selection")["op"] == "F1 of stage 0, microbatch 1"
    page.keyboard.press("ArrowDown")
    assert state(page, "selected.op") == 24
    assert page.get_attribute("#selection", "aria-live") == "polite"
    page.keyboard.press("+")
    assert state(page, "window") == pytest.approx({"from": 5, "to": 25})
    page.keyboard.press("ArrowLeft")
    assert state(page, "window") == pytest.approx({"from": 3, "to": 23})
    page.keyboard.press("Home")
    assert state(page, "window") is None
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "factor-F"


def test_wheel_zooms_around_the_pointer_and_dragging_pans(open_page):
    page = open_page(panel_of())
    x, y = map(round, point(page, 30))
    left = page.evaluate("zerobubble.viewer.canvas.getBoundingClientRect().left")
    time_at = (
        f"(({{ from, scale }}) => from + ({x} - {left} - 92) / scale)(zerobubble.viewer.layout())"
    )
    time = page.evaluate(time_at)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    page.wait_for_function("zerobubble.viewer.state.window")
    assert page.evaluate(time_at) == pytest.approx(time)
    shown = page.evaluate("zerobubble.viewer.layout()")
    assert shown["to"] - shown["from"] == pytest.approx(30 * np.exp(-400 * 0.0018))
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.up()
    assert page.evaluate(time_at) == pytest.approx(time - 60 / shown["scale"])
    assert state(page, "selected") is None


def test_the_text_has_every_op(open_page):
    panel = panel_of()
    page = open_page(panel)
    page.click("#all summary")
    assert len(rows(page, "#all-tables")) == 4 + panel.schedule.num_ops
    first, last = (rows(page, "#all-tables table:last-child")[i] for i in (0, -1))
    assert first[:3] == ["F0 of stage 0, microbatch 0", "0", "0 to 1, takes 1"]
    assert last[0] == "W7 of stage 3, microbatch 7"
    held = "memory limit 4.25 (14.2%)"
    assert rows(page, "#all-tables table:first-child")[0][1].startswith(held)


def test_dark_and_light(open_page):
    page = open_page(panel_of(), scheme="dark")
    corner = page.evaluate("document.getElementById('timeline').getBoundingClientRect().toJSON()")
    where = (corner["x"] + 2, corner["y"] + 2)
    assert pixel(page, *where) == [0x1D, 0x20, 0x24]
    page.click("#theme")
    draw(page)
    assert pixel(page, *where) == [255, 255, 255]


def test_a_large_schedule_is_aggregated_and_pans(open_page):
    panel = panel_of("zb-h1", 64, 512, limit=None)
    assert panel.schedule.num_ops == 98_304
    page = open_page(panel)
    assert rows(page, "#summary")[0][1] == f"{timeline_of(panel).span:.6g}"
    draw(page)
    assert page.evaluate(OPS) == 0
    assert page.evaluate(COLUMNS) > 10 * 1000
    frames = page.evaluate("zerobubble.viewer.stats.frames")
    page.evaluate("zerobubble.viewer.show(800, 840)")
    for _ in range(3):
        page.evaluate(
            "zerobubble.viewer.pan(2); new Promise((done) =>"
            "requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
    assert page.evaluate("zerobubble.viewer.stats.frames") >= frames + 3
    assert page.evaluate(COLUMNS) == 0
    assert 20 * 40 * 0.8 < page.evaluate(OPS) < 64 * 45


def test_fused_backwards_and_stages_of_one_rank(open_page):
    panel = panel_of("interleaved", limit=None)
    page = open_page(panel)
    page.mouse.move(*point(page, index_of(panel, BW(7, 0))))
    assert terms(page, "#tip")["waited for"] in ("nothing", "its turn after F0 of stage 7")


def test_the_page_is_small_and_marked():
    text = write_page([panel_of()])
    assert len(text) < 110_000
    assert MARK in text[:1000]


def test_measured_idle_causes_equal_the_command_line(open_file, zerobubble, tmp_path):
    """What the page finds in a run that was written to disk is what --json says of it."""
    schedule = build("zb-h1", 4, 8)
    costs = Costs.uniform(4, **TIMES)
    measured = measured_of(np.random.default_rng(5), schedule, costs)
    ends = zip(measured.arrived, range(schedule.num_codes), strict=True)
    there = [(time, schedule.op(code)) for time, code in ends if not np.isnan(time)]
    holders = schedule.placement.stage_to_rank
    transfers = tuple(
        Transfer(op, holders[op.stage], holders[op.stage + (1 if op.kind == 0 else -1)], 0, time, 8)
        for time, op in there
    )
    ran = measured.timeline
    step = MeasuredStep(7, ran, ran.start, ran.end, transfers)
    save(MeasuredRun(schedule, costs, (step,)), tmp_path / "timeline.json")
    found = json.loads(zerobubble("view", "timeline.json", "--json").out)
    page = open_file(tmp_path / "view.html")
    shown = page.evaluate(IDLE)[0]
    assert [[*map(dict, run)] for run in shown] == [
        [pytest.approx(causes) for causes in run["idle"]] for run in found["runs"]
    ]
    assert rows(page, "#summary")[1][1] == f"{found['runs'][1]['span']:.6g}"
    assert "late start" in found["runs"][1]["idle"][0]
