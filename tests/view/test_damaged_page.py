"""Does a page whose file was cut or changed say so, in words, and never stay blank?"""

from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest

from tests.view.test_page import panel_of, timeline_of
from zerobubble.view.html import Measured, Panel, panel_data, write_page

pytestmark = pytest.mark.timeout(120)

NOT_A_NUMBER = b64encode(np.full(96, np.nan).tobytes()).decode()


CODES = b64encode(np.full(96, -1, dtype="<i4").tobytes()).decode()


def whole() -> Panel:
    panel = panel_of()
    return replace(panel, measured=Measured(17, timeline_of(panel), None))


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 0.999])
def test_a_page_that_was_cut_says_so(open_file, tmp_path, share):
    text = write_page([whole()])
    path = tmp_path / "cut.html"
    path.write_text(text[: int(len(text) * share)], encoding="utf-8")
    page = open_file(path)
    if share < 0.999:
        assert "the file is incomplete: write it again" in page.inner_text("#message")
    else:
        assert page.is_visible("#message") or page.is_visible("#content")
    assert page.inner_text("body").strip()


@pytest.mark.parametrize(
    "mark", ["<style>", "<main", "<noscript>", '<script type="appl', "<script>"]
)
@pytest.mark.parametrize("more", [0, 5, 200])
def test_no_place_of_a_cut_leaves_a_blank_page(open_file, tmp_path, mark, more):
    text = write_page([whole()])
    path = tmp_path / "cut.html"
    path.write_text(text[: text.index(mark) + more], encoding="utf-8")
    page = open_file(path)
    assert "the file is incomplete: write it again" in page.inner_text("#message")
    assert page.is_visible("#message")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"panels": [', '"panels": [], "x": [', "it names no schedule"),
        ('"version": 1', '"version": 99', "its version is 99, and this page reads version 1"),
        ('{"version"', '{{"version"', "they are no JSON"),
        ('"codes": "', '"codes": "%%', "codes is damaged"),
        ('"codes": "', '"codes": "AAAA', "codes is cut"),
        ('"lengths": [24', '"lengths": [23', "it has 96 ops, not 95"),
        ('"costs": {', '"other": {', "costs are missing"),
    ],
)
def test_a_damaged_page_says_why(open_file, tmp_path, old, new, reason):
    text = write_page([whole()])
    assert old in text
    path = tmp_path / "damaged.html"
    path.write_text(text.replace(old, new), encoding="utf-8")
    page = open_file(path)
    problem = f"This page cannot show its data: {reason}. Write it again"
    assert page.inner_text("#message").startswith(problem)
    assert page.is_visible("#message")
    assert page.get_attribute("#message", "role") == "alert"
    assert page.is_hidden("#content")
    page.noted_errors.clear()


def changed(*path, to):
    """Give the data of a panel with one value changed."""
    data = panel_data(whole())
    *inner, last = path
    place = data
    for key in inner:
        place = place[key]
    place[last] = to
    return data


COSTS = "costs.forward must be 4 numbers of 0 or more, one for each stage"
COUNT = "num_microbatches is no number of 1 or more"
CASES = [
    (("costs", "forward"), [1], COSTS),
    (("costs", "forward"), ["a"] * 4, COSTS),
    (("costs", "forward"), [1, 1, 1, -1], COSTS),
    (("costs", "forward"), None, COSTS),
    (("num_microbatches",), 0, COUNT),
    (("num_microbatches",), None, COUNT),
    (("num_microbatches",), 1e300, COUNT),
    (("num_microbatches",), 2**40, "num_microbatches is 1099511627776, too many for 96 ops"),
    (("num_microbatches",), 7, "rank 0 has an op of stage 1, not its own"),
    (("codes",), CODES, "codes has -1, which is no op of this schedule"),
    (("placement",), [0, 1, 2, 4], "placement names no rank for a stage"),
    (("placement",), [1, 0, 2, 3], "rank 0 has an op of stage 0, not its own"),
    (("lengths",), [24, 24, 24, 24.5], "lengths are no numbers of ops"),
    (("lengths",), [], "lengths are no numbers of ops"),
    (("limits",), [4, 4], "limits are not one number above 0 for each rank"),
    (("name",), 3, "name is no text"),
    (("measured", "number"), "x", "measured has no number of its step"),
    (("measured", "arrived"), "AAAAAAAAAAA=", "measured.arrived has 1 times for 96 ops"),
    (("measured", "start"), "AAAAAAAAAAA=", "measured.start has 1 times for 96 ops"),
    (("measured", "start"), "AAAA", "measured.start is cut"),
    (("measured", "start"), NOT_A_NUMBER, "op 0 has no measured time"),
    (("measured", "end"), NOT_A_NUMBER, "op 0 has no measured time"),
]


def test_every_damage_to_the_data_is_found(open_page):
    page = open_page(whole())
    read = """(panels) => panels.map((data) => {
      try { zerobubble.readPanel(data); return null; } catch (error) { return error.message; }
    })"""
    found = page.evaluate(read, [changed(*path, to=value) for path, value, _ in CASES])
    for message, (path, value, reason) in zip(found, CASES, strict=True):
        assert message is not None, (path, value)
        assert message.startswith(reason)
    assert page.evaluate(read, [panel_data(whole())]) == [None]
