"""Does the page show copies beside the ops, to the eye, the pointer and the keyboard?"""

from dataclasses import replace

import numpy as np
import pytest

from tests.view.browser import draw, pixel, point, rows, state, terms
from tests.view.test_page import index_of, panel_of
from zerobubble.costs import Costs
from zerobubble.ir import BW, F, L, O, R, Schedule, linear
from zerobubble.view.html import Panel

pytestmark = pytest.mark.timeout(120)

ORDERS = [
    [F(0, 0), O(0, 0), F(0, 1), L(0, 0), BW(0, 0), BW(0, 1)],
    [F(1, 0), BW(1, 0), F(1, 1), R(1, 1), BW(1, 1)],
]
COSTS = replace(Costs.uniform(2), offload=np.array([1.5, 0]), load=np.array([1.5, 0]))
PANEL = Panel(Schedule.from_ops("moved", linear(2), 2, ORDERS), COSTS)


def chosen(page):
    place = state(page, "selected")
    return PANEL.schedule.op(int(PANEL.schedule.flat()[0][place["op"]]))


def test_copies_lie_beneath_their_rank_in_their_colours(open_page):
    page = open_page(PANEL)
    ops, out, back = (point(page, index_of(PANEL, op)) for op in (F(0, 0), O(0, 0), L(0, 0)))
    assert ops[1] < out[1] < back[1] < point(page, index_of(PANEL, F(1, 0)))[1]
    for (x, y), color in ((out, [203, 174, 230]), (back, [242, 169, 196])):
        assert color in [pixel(page, x + right, y + 4) for right in (20, 22, 24)], (
            "beside the hatch"
        )
    for kind in "OLR":
        assert page.is_visible(f"#legend-{kind}")
    assert page.is_visible("#factor-copy")


def test_a_plain_schedule_says_nothing_of_copies(open_page):
    page = open_page(panel_of())
    for name in ("#legend-O", "#legend-L", "#legend-R", "#factor-copy"):
        assert not page.is_visible(name)


def test_hover_tells_what_copies_and_ops_waited_for(open_page):
    page = open_page(PANEL)
    expected = {
        O(0, 0): "the end of F0 of stage 0",
        L(0, 0): "the end of F1 of stage 0",
        F(0, 1): "its turn after O0 of stage 0, its input was there 2.5 before",
        BW(0, 0): "the copy back, L0 of stage 0: idle 1.5",
        R(1, 1): "its turn after F1 of stage 1, its input was there 5 before",
    }
    for op, text in expected.items():
        page.mouse.move(*point(page, index_of(PANEL, op)))
        found = terms(page, "#tip")
        assert (found["op"], found["waited for"]) == (f"{op}, microbatch {op.microbatch}", text)
    page.mouse.move(*point(page, index_of(PANEL, L(0, 0))))
    assert terms(page, "#tip")["memory"] == "1 before, 2 after"
    causes = [row[0] for row in rows(page, "#idle")]
    assert "waits for the copy to the host of stage 0" in causes
    assert "waits for the copy back of stage 0" in causes


def test_keys_go_through_the_rows_of_copies(open_page):
    page = open_page(PANEL)
    page.focus("#timeline")
    page.mouse.click(*point(page, index_of(PANEL, F(0, 0))))
    found = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp", "Tab"):
        page.keyboard.press(key)
        found.append(chosen(page))
    assert found == [O(0, 0), L(0, 0), BW(1, 0), L(0, 0), O(0, 0), F(0, 1)]


def test_the_way_of_a_microbatch_and_the_critical_path_have_its_copies(open_page):
    page = open_page(replace(PANEL, costs=replace(COSTS, load=np.array([4.0, 0]))))
    page.mouse.click(*point(page, index_of(PANEL, O(0, 0))))
    way = page.evaluate(
        "zerobubble.wayOfMicrobatch(zerobubble.viewer.panels[0].schedule,"
        "zerobubble.viewer.state.selected.op)"
    )
    ops = [F(0, 0), F(1, 0), BW(1, 0), BW(0, 0), O(0, 0), L(0, 0)]
    assert way == [index_of(PANEL, op) for op in ops]
    page.keyboard.press("c")
    draw(page)
    split = "6 ops: compute 6 (52.2%), transfer 0 (0.0%), copies 5.5 (47.8%), wait 0 (0.0%)"
    assert page.inner_text("#critical .split") == split


def test_the_slider_of_copies_makes_them_longer(open_page):
    page = open_page(PANEL)
    page.evaluate("zerobubble.viewer.set({factors: {copy: 2}})")
    timeline = page.evaluate("[...zerobubble.viewer.panels[0].planned.timeline.end]")
    assert timeline[index_of(PANEL, O(0, 0))] == 4


def test_a_page_whose_backward_comes_before_its_copy_says_so(open_page):
    orders = [[F(0, 0), O(0, 0), BW(0, 0), L(0, 0)]]
    schedule = Schedule.from_ops("wrong", linear(1), 1, orders)
    page = open_page(Panel(schedule, Costs.uniform(1)))
    message = "BW0 of stage 0 runs before what it reads is back"
    assert message in page.inner_text("#message")
    page.noted_errors.clear()
