"""Does the page hold up to odd names, links, windows, limits and ops without time?"""

import json
from dataclasses import replace

import pytest

from tests.view.browser import draw, pixel, point, state, terms
from tests.view.pretended import delayed
from tests.view.test_page import IDLE, OPS, index_of, panel_of, timeline_of
from zerobubble.ir import B
from zerobubble.view.html import Measured

pytestmark = pytest.mark.timeout(120)


def test_names_are_text(open_page):
    name = "</script ><script>alert(1)</script>\"'&<!--<script>\u2028"
    panel = panel_of(limit=None)
    page = open_page(replace(panel, schedule=panel.schedule.renamed(name), note="<b>bold</b>"))
    assert page.text_content("#summary tbody th") == name
    assert page.title().startswith("</script ><script>alert(1)</script>\"'&<!--")
    assert page.locator("script").count() == 2


@pytest.mark.parametrize("name", ["{{js}}", "{{data}} {{css}}", "{{title}}", r"\1\g<0>", "{{x}}"])
def test_a_name_may_look_like_a_part_of_the_page(open_page, name):
    panel = panel_of(limit=None)
    page = open_page(replace(panel, schedule=panel.schedule.renamed(name), note=name))
    assert page.text_content("#summary tbody th") == name
    assert page.title() == f"{name} - zerobubble"


def test_a_wrong_hash_is_ignored(open_page):
    wrong = "#t=9,3&op=0,7,99999&F=-1&theme=pink&critical=2&memory=no&%zz"
    page = open_page(panel_of(), hash_=wrong)
    initial = page.evaluate("zerobubble.viewer.state")
    assert (initial["window"], initial["selected"], initial["theme"]) == (None, None, None)
    assert (initial["critical"], initial["memory"]) == (False, True)
    assert set(initial["factors"].values()) == {None}
    for part in ("F=", "F=%20", "W=0x1", "op=0,0,%20", "op=0,0", "op=,,", "t=,5", "t=1,2,3", "t="):
        page.evaluate(f"history.replaceState(null, '', '#{part}'); zerobubble.viewer.restore()")
        assert page.evaluate("zerobubble.viewer.state") == initial


@pytest.mark.parametrize("window", ["1e5,2e5", "-5,-3", "-1e9,1e9", "29,1e17", "3,3.0000000000001"])
def test_a_window_outside_of_the_data_is_brought_back(open_page, window):
    page = open_page(panel_of(), hash_=f"#t={window}")
    found = page.evaluate("zerobubble.viewer.layout()")
    assert found["from"] >= 0
    assert found["to"] <= 30 + 1e-9
    assert found["to"] - found["from"] >= 30e-7 - 1e-12
    draw(page)


def test_a_window_is_brought_back_when_the_makespan_shrinks(open_page):
    page = open_page(panel_of(limit=None))
    page.evaluate("zerobubble.viewer.show(25, 30)")
    for name in ("F", "B", "W", "comm"):
        page.fill(f"#factor-{name}", "0.1")
    found = page.evaluate("zerobubble.viewer.layout()")
    assert (found["from"], found["to"]) == (0, found["extent"])
    draw(page)
    assert page.evaluate(OPS) == 96


def test_a_slider_takes_the_tip_away(open_page):
    page = open_page(panel_of())
    x, y = point(page, 3)
    page.focus("#factor-comm")
    page.mouse.move(x + 1.5 * page.evaluate("zerobubble.viewer.layout().scale"), y)
    assert page.is_visible("#tip")
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    assert page.is_hidden("#tip")
    assert state(page, "hovered") is None


def test_the_keyboard_goes_on_to_the_next_schedule_and_to_the_plan(open_page):
    panel, other = panel_of(limit=None), panel_of("1f1b", limit=None)
    delayed_run = Measured(17, delayed(timeline_of(panel), panel.schedule.code(B(2, 1)), 5.0))
    page = open_page(other, replace(panel, measured=delayed_run))
    last = other.schedule.num_ops - 1
    page.evaluate(f"zerobubble.viewer.set({{ selected: {{ panel: 0, run: 0, op: {last} }} }})")
    page.focus("#timeline")
    page.keyboard.press("Tab")
    assert state(page, "selected") == {"panel": 1, "run": 1, "op": 0}
    page.keyboard.press("p")
    assert state(page, "selected") == {"panel": 1, "run": 0, "op": 0}
    page.keyboard.press("p")
    page.keyboard.press("Shift+Tab")
    assert state(page, "selected") == {"panel": 0, "run": 0, "op": last}
    page.keyboard.press("ArrowDown")
    assert state(page, "selected")["panel"] == 1
    assert state(page, "selected")["run"] == 1
    page.keyboard.press("ArrowUp")
    assert state(page, "selected.panel") == 0
    page.evaluate("zerobubble.viewer.set({ selected: { panel: 1, run: 1, op: 95 } })")
    page.keyboard.press("ArrowDown")
    assert state(page, "selected.op") == 95
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "factor-F"


def test_ops_that_take_no_time_are_ticks_that_can_be_pointed_at(open_page):
    panel = panel_of(limit=None, f=0, b=0, w=1, transfer=0)
    page = open_page(panel)
    draw(page)
    assert page.evaluate(OPS) == panel.schedule.num_ops
    op = index_of(panel, B(3, 0))
    x, y = point(page, op)
    page.mouse.move(x, y)
    assert "takes 0" in terms(page, "#tip")["time"]
    assert pixel(page, x, y) != pixel(page, x + 4, y)


def test_only_some_limits_are_infinite(open_file, zerobubble, tmp_path):
    flags = ("-p", 4, "-m", 8, "--costs", "1,1,1,.25", "--memory", "4,inf,4,4")
    found = json.loads(zerobubble("view", "zb-h1", *flags, "--json").out)["runs"][0]["idle"]
    assert "memory limit" in found[0]
    page = open_file(tmp_path / "view.html")
    assert [*map(dict, page.evaluate(IDLE)[0][0])] == [pytest.approx(causes) for causes in found]
    page.mouse.move(*point(page, 0))
    assert terms(page, "#tip")["memory"] == "0 before, 1 after (limit 4)"
    page.mouse.move(*point(page, 24))
    assert terms(page, "#tip")["memory"] == "0 before, 1 after"


def test_a_long_name_takes_two_lines(open_page):
    schedule = panel_of().schedule.renamed("long " * 2000)
    page = open_page(replace(panel_of(), schedule=schedule))
    assert page.evaluate("document.documentElement.scrollHeight") < 1500
    assert page.get_attribute("#summary tbody th span", "title") == schedule.name
    assert len(page.title()) < 300


def test_a_run_that_lost_nothing_says_so(open_page):
    panel = panel_of(limit=None)
    page = open_page(replace(panel, measured=Measured(17, timeline_of(panel)), unit="ms"))
    assert "No op lost time." in page.inner_text("#lost")
    assert "zb-h1, measured: of step 17 alone." in page.inner_text("#summary")
