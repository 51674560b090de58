"""Does ``zerobubble view`` find what to show, write one page, and refuse the rest in one line?"""

import json

import numpy as np
import pytest

from tests.formats.test_python import MINE
from zerobubble.cli import _page
from zerobubble.costs import Costs
from zerobubble.formats import timeline as timeline_format
from zerobubble.formats.json import save
from zerobubble.ir import BW, F
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.view.html import Panel, write_page
from zerobubble.view.overlay import arrivals, median_costs, overlay

SIZE = ("-p", 2, "-m", 2)


def measured_run(costs=None, name="1f1b"):
    """Two steps of 1F1B on two ranks; the second takes twice as long."""
    schedule = build(name, 2, 2)
    steps = []
    for number in (17, 18):
        times = Costs.uniform(2, f=number - 16, b=number - 16, w=0.5)
        ran = simulate(schedule, times)
        there = [Transfer(F(0, i), 0, 1, ran.end[0][i], ran.end[0][i], 8) for i in range(2)]
        steps.append(MeasuredStep(number, ran, ran.start, ran.end, tuple(there)))
    return MeasuredRun(schedule, costs, tuple(steps))


@pytest.fixture
def folder(tmp_path):
    """A run folder, its timeline.json being that of ``measured_run``."""
    (tmp_path / "run").mkdir()
    timeline_format.save(measured_run(), tmp_path / "run" / "timeline.json")
    return tmp_path


def test_a_schedule_by_name(zerobubble, tmp_path):
    status, out, err = zerobubble("view", "zb-h1", *SIZE, "--costs", "1,2,1,.5", "--memory", 2)
    assert (status, out, err) == (0, "view.html shows zb-h1\n", "")
    costs = Costs.uniform(2, f=1, b=2, w=1, transfer=0.5)
    expected = write_page([Panel(build("zb-h1", 2, 2), costs, [2.0, 2.0])])
    assert (tmp_path / "view.html").read_text() == expected


def test_files_functions_and_runs_on_one_page(zerobubble, folder):
    save(build("gpipe", 2, 2), folder / "saved.json")
    (folder / "mine.py").write_text(MINE.replace("1f1b", "mine"))
    words = ("saved.json", "mine.py:my_schedule", "run", "run/timeline.json")
    out = zerobubble("view", *words, *SIZE, "--costs", "1,1,1,0", "--out", "page.html").out
    assert out == "page.html shows gpipe, mine, 1f1b, 1f1b\n"
    assert "\\u003cscript" not in (folder / "page.html").read_text()


def test_a_page_is_replaced_and_nothing_else(zerobubble, refused, tmp_path):
    assert zerobubble("view", "zb-h1", *SIZE).status == 0
    assert zerobubble("view", "1f1b", *SIZE).out == "view.html shows 1f1b\n"
    (tmp_path / "notes.html").write_text("<p>mine</p>")
    message = refused("view", "1f1b", *SIZE, "--out", "notes.html")
    problem = "notes.html exists and is not a page of zerobubble: write to another file"
    assert message == f"zerobubble view: {problem}"
    assert (tmp_path / "notes.html").read_text() == "<p>mine</p>"


def test_the_last_step_or_the_one_asked_for(zerobubble, folder):
    def runs(*argv):
        return json.loads(zerobubble("view", "run", "--json", *argv).out)["runs"]

    planned, measured = runs()
    assert (planned["step"], measured["step"]) == (None, 18)
    assert measured["span"] == planned["span"] == 13.5
    assert [row["span"] for row in runs("--step", 17)] == [7.5, 7.5]
    assert measured["idle"][1] == {"drain": 2.5, "warm-up": 2}


def test_costs_given_take_the_place_of_those_of_the_run(zerobubble, folder):
    out = zerobubble("view", "run", "--json", "--costs", "1,1,1,0", "--step", 17).out
    assert [row["span"] for row in json.loads(out)["runs"]] == [9, 7.5]


def test_a_run_has_no_other_bandwidth_than_its_own(refused, folder):
    message = refused("view", "run", "--offload-bandwidth", 1)
    assert "run was measured" in message
    assert "give --costs too, or leave out --offload-bandwidth and --recompute" in message


def test_what_is_laid_over_what():
    costs = Costs.uniform(2, f=3)
    run = measured_run(costs)
    panel = overlay(run, run.steps[1], limits=[1.0, 2.0])
    assert (panel.costs, panel.note) == (costs, "plan: the expected times of the run")
    assert (panel.measured.number, panel.unit, panel.limits) == (18, "ms", [1.0, 2.0])
    assert overlay(measured_run(), run.steps[0]).note == "plan: medians of the measured ops"
    given = overlay(run, run.steps[0], Costs.uniform(2, f=5))
    assert (given.costs.forward.tolist(), given.note) == ([5, 5], "plan: the costs that were given")


def test_medians_and_arrivals():
    step = measured_run().steps[0]
    medians = median_costs(step.timeline)
    assert medians.forward.tolist() == [1, 1]
    assert medians.backward_input.tolist() == [1.5, 1.5]
    assert medians.backward_weight.tolist() == [0, 0]
    schedule = step.timeline.schedule
    table = arrivals(schedule, step)
    assert table[schedule.code(F(0, 1))] == 2
    assert np.isnan(table[schedule.code(BW(1, 0))])
    split = median_costs(measured_run(name="zb-h1").steps[0].timeline)
    assert split.backward_weight.tolist() == [0.5, 0.5]


def test_the_browser_is_opened_when_asked(zerobubble, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    zerobubble("view", "zb-h1", *SIZE)
    assert opened == []
    zerobubble("view", "zb-h1", *SIZE, "--open")
    assert opened == [(tmp_path / "view.html").as_uri()]


def test_a_schedule_beside_a_run_is_in_ms(zerobubble, folder):
    assert zerobubble("view", "run", "zb-h1", *SIZE, "--costs", "1,1,1,0").status == 0
    assert (folder / "view.html").read_text().count('"unit": "ms"') == 2


def test_a_long_name_is_shortened_in_what_is_printed(zerobubble, folder):
    save(build("gpipe", 2, 2).renamed("g" * 10_000), folder / "long.json")
    assert zerobubble("view", "long.json").out == f"view.html shows {'g' * 59}…\n"
    assert max(map(len, zerobubble("show", "long.json").out.splitlines())) < 200
    assert max(map(len, zerobubble("compare", "long.json").out.splitlines())) < 200
    assert json.loads(zerobubble("show", "long.json", "--json").out)["schedule"] == "g" * 10_000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["run", "zb-h1", *SIZE],
            "a run is measured in ms, and zb-h1 has no times in ms: give --costs in ms",
        ),
        (["bench"], "bench is no run folder: it has no timeline.json; runs in it: a, b"),
        (["plain.json"], 'plain.json: this is no measured timeline: it has no "format": "zerobub'),
        ([], "view takes 1 to 4 schedules or runs, not 0"),
        (["1f1b"] * 5, "view takes 1 to 4 schedules or runs, not 5"),
        (["empty"], "empty is no run folder: it has no timeline.json"),
        (["empty.json"], "empty.json: line 1, column 1: not JSON: "),
        (["cut.json"], "cut.json: line 1, column "),
        (["none.json"], "cannot read none.json: No such file or directory"),
        (["list.json"], "list.json: a schedule is an object with the keys "),
        (["bytes.json"], "cannot read bytes.json: it is not UTF-8 text"),
        (["run", "--step", 3], "run has no step 3: recorded are 17, 18"),
        (["1f1b", *SIZE, "--step", 1], "none of these is a measured run: leave out --step"),
        (["run", "-p", 3], "run is for 2 ranks, not 3: give -p 2"),
        (["run", "-m", 3], "run is for 2 microbatches, not 3: give -m 2"),
        (["run", "--costs", "1,1"], "--costs '1,1': write F,B,W,comm or "),
        (["unrecorded"], "unrecorded has no recorded step: run again with "),
        (["later.json"], "later.json: version is 9, but this release reads 1 and 2"),
        (["run", "--out", "no/where.html"], "cannot write no/where.html: No such file or "),
        (["run", "--out", "run"], "run exists and is not a page of zerobubble: write to another"),
    ],
)
def test_wrong_input_is_told_in_one_line_and_leaves_no_page(refused, folder, argv, message):
    text = (folder / "run" / "timeline.json").read_text()
    for name in ("empty", "unrecorded"):
        (folder / name).mkdir()
    run = measured_run()
    timeline_format.save(
        MeasuredRun(run.schedule, None, ()), folder / "unrecorded" / "timeline.json"
    )
    for name in ("a", "b"):
        (folder / "bench" / name).mkdir(parents=True)
        (folder / "bench" / name / "timeline.json").write_text(text)
    (folder / "plain.json").write_text(text.replace('"format": "zerobubble-timeline", ', ""))
    (folder / "empty.json").write_text("")
    (folder / "cut.json").write_text(text.replace("\n", "")[:700])
    (folder / "list.json").write_text("[1]")
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    (folder / "later.json").write_text(text.replace('"version": 2', '"version": 9', 1))
    assert refused("view", *argv).startswith(f"zerobubble view: {message}")
    assert not (folder / "view.html").exists()


def test_a_wrong_schedule_is_refused(refused, tmp_path):
    message = refused("view", "zb-h2", "-p", 4, "-m", 8, "--memory", 6.5, status=1)
    assert "over the limit of 6.5 (rule memory-limit)" in message
    assert not (tmp_path / "view.html").exists()


def test_too_many_ops_for_a_page(refused, monkeypatch):
    monkeypatch.setattr(_page, "_MOST_OPS", 7)
    message = refused("view", "1f1b", *SIZE)
    assert message == "zerobubble view: 8 ops are too many for a page: show at most 7"
