"""Does ``zerobubble show`` find, draw, measure and write a schedule, and refuse wrong input?"""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.test_python import MINE
from tests.formats.test_timeline import a_run
from zerobubble.cli._resolve import resolve
from zerobubble.costs import Costs
from zerobubble.errors import ZeroBubbleError
from zerobubble.formats import timeline
from zerobubble.formats.json import load, save
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.view.explain import explain
from zerobubble.view.facts import Facts
from zerobubble.view.html import Panel, write_page
from zerobubble.view.numbers import summarize
from zerobubble.view.svg import draw_svg
from zerobubble.view.text import draw

SIZE = ("-p", 4, "-m", 8)
KEYS = [
    "schedule",
    "ranks",
    "microbatches",
    "placement",
    "span",
    "makespan",
    "bubble",
    "bubble_makespan",
    "peak_memory",
    "peak_memory_per_rank",
]


def test_json_has_the_numbers(zerobubble):
    status, out, err = zerobubble("show", "zb-h1", *SIZE, "--costs", "1,1,1,0", "--json")
    assert (status, err) == (0, "")
    values = json.loads(out)
    assert [*values] == [*KEYS, "idle", "critical_path"]
    assert values == {
        "schedule": "zb-h1",
        "ranks": 4,
        "microbatches": 8,
        "placement": "linear",
        "span": 27,
        "makespan": 27,
        "bubble": pytest.approx(1 / 9),
        "bubble_makespan": pytest.approx(1 / 9),
        "peak_memory": 4,
        "peak_memory_per_rank": [4, 4, 4, 4],
        "idle": [
            {"waits for B of stage 1 on rank 1": 3},
            {"waits for B of stage 2 on rank 2": 2, "warm-up": 1},
            {"warm-up": 2, "waits for B of stage 3 on rank 3": 1},
            {"warm-up": 3},
        ],
        "critical_path": {"compute": 27, "transfer": 0, "copies": 0, "wait": 0},
    }


def test_the_picture_and_the_numbers_are_shown(zerobubble):
    status, out, err = zerobubble("show", "zb-h1", *SIZE)
    timeline = simulate(build("zb-h1", 4, 8), Costs.uniform(4))
    title = "zb-h1: 4 ranks, 8 microbatches, placement linear"
    assert (status, err) == (0, "")
    assert out == f"{title}\n{draw(timeline)}\n{summarize(timeline)}\n{explain(Facts(timeline))}\n"


@pytest.mark.parametrize("width", [40, 80, 133])
def test_a_terminal_is_not_overrun(zerobubble, monkeypatch, width):
    monkeypatch.setattr("zerobubble.cli._report.terminal_width", lambda: width)
    lines = zerobubble("show", "zb-v", "-p", 8, "-m", 8, "--costs", "1,1,1,.1").out.splitlines()
    below = lines[lines.index("peak memory 8") :]
    assert max(map(len, below)) <= width
    assert " ".join(" ".join(below).split()).count("idle on rank") == 8


def test_the_limit_is_a_cause(zerobubble):
    out = zerobubble("show", "zb-h1", *SIZE, "--memory", 4).out
    assert "idle on rank 0: memory limit 11.1%\n" in out


def test_html_is_the_page(zerobubble, tmp_path):
    assert zerobubble("show", "zb-h1", *SIZE, "--html", "mine.html", "--memory", 5).status == 0
    panel = Panel(build("zb-h1", 4, 8), Costs.uniform(4), [5.0] * 4)
    assert (tmp_path / "mine.html").read_text() == write_page([panel])


def test_parameters_and_long_flags(zerobubble):
    words = ("--ranks=2", "--microbatches", 4, "--json", "--costs", "2,2,2,1,.5")
    values = json.loads(zerobubble("show", "interleaved:v=4", *words).out)
    assert (values["schedule"], values["placement"]) == ("interleaved:v=4", "looped:4")
    assert (
        values["makespan"]
        == simulate(
            build("interleaved:v=4", 2, 4), Costs.uniform(8, f=0.5, b=0.5, w=0.5, transfer=1)
        ).makespan
    )


def test_out_writes_a_file_that_can_be_shown(zerobubble):
    first = zerobubble("show", "zb-h2", *SIZE, "--out", "mine.json", "--json")
    assert load("mine.json") == build("zb-h2", 4, 8)
    assert zerobubble("show", "mine.json", "--json") == first
    assert zerobubble("show", "mine.json", *SIZE, "--json") == first


def test_a_function_in_a_file_is_shown(zerobubble, tmp_path):
    (tmp_path / "my_file.py").write_text(MINE.replace("1f1b", "mine"))
    values = json.loads(zerobubble("show", "my_file.py:my_schedule", *SIZE, "--json").out)
    assert (values["schedule"], values["peak_memory"]) == ("mine", 8)


def test_costs_from_a_file(zerobubble, tmp_path):
    costs = {"forward": [1, 2], "backward_input": 3, "backward_weight": 4, "transfer": [5]}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    values = json.loads(
        zerobubble("show", "1f1b", "-p", 2, "-m", 1, "--costs", "costs.json", "--json").out
    )
    assert values["makespan"] == 1 + 5 + 2 + 7 + 5 + 7


def test_memory_is_a_limit(zerobubble, refused):
    assert zerobubble("show", "zb-h1", *SIZE, "--memory", 4).status == 0
    assert zerobubble("show", "zb-h2", "-p", 2, "-m", 8, "--memory", "3,3").status == 0
    assert refused("show", "zb-h2", *SIZE, "--memory", 6.5, status=1) == (
        "zerobubble show: zb-h2: rank 0: F6 of stage 0 (op 6) raises activation memory to 7, over "
        "the limit of 6.5 (rule memory-limit): run a backward before it, or allow 7 (and 3 more)"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["zb-h3", *SIZE],
            "unknown schedule 'zb-h3': did you mean zb-h2? known are breadth-first, ",
        ),
        (["zb-h1", "-p", 4], "zb-h1 needs ranks and microbatches: -m is missing"),
        (["zb-h1", "-m", 4], "zb-h1 needs ranks and microbatches: -p is missing"),
        (["none.json"], "cannot read none.json: No such file or directory"),
        (["none.py:mine"], "cannot read none.py: No such file or directory"),
        (["none.py"], "none.py is a Python file: add the function, none.py:my_schedule"),
        (["mine.json", "-p", 3], "mine.json is for 4 ranks, not 3: give -p 4"),
        (["mine.json", "-m", 3], "mine.json is for 8 microbatches, not 3: give -m 8"),
        (["broken.json"], "broken.json: line 1, column 2: not JSON: "),
        (["my_file.py:other", *SIZE], "my_file.py has no schedule 'other': it has my_schedule"),
        (["bad.py:mine", *SIZE], "bad.py, line 1: ZeroDivisionError: division by zero"),
        (["zb-h1", *SIZE, "--costs", "1,1,1"], "--costs '1,1,1': write F,B,W,comm or F,B,W,comm,"),
        (["zb-h1", *SIZE, "--costs", "1,1,1,0,1,1"], "--costs '1,1,1,0,1,1': write F,B,W,comm or "),
        (["zb-h1", *SIZE, "--costs", "a,b,c,d"], "--costs 'a,b,c,d': write F,B,W,comm or "),
        (["zb-h1", *SIZE, "--costs", "-1,1,1,0"], "costs: forward must be between 0 and 1e100: "),
        (["zb-h1", *SIZE, "--costs", "nan,1,1,0"], "costs: forward must be between 0 and 1e100: "),
        (["zb-h1", *SIZE, "--costs", "1,1,inf,0"], "costs: backward_weight must be between 0 and "),
        (["zb-h1", *SIZE, "--costs", "1,1,1,0,2"], "costs: activation_kept must not exceed "),
        (["zb-h1", *SIZE, "--costs", "none.json"], "cannot read none.json: No such file or "),
        (["zb-h1", *SIZE, "--costs", "broken.json"], "broken.json: line 1, column 2: not JSON: "),
        (["zb-h1", *SIZE, "--costs", "list.json"], "list.json: costs are an object, not [1]"),
        (["zb-h1", *SIZE, "--costs", "mine.json"], "mine.json: costs: unknown key 'format'; the "),
        (["zb-h1", *SIZE, "--memory", "0"], "--memory '0': write a number above 0, or one for "),
        (
            ["zb-h1", *SIZE, "--memory", "nan"],
            "--memory 'nan': write a number above 0, or one for ",
        ),
        (["zb-h1", *SIZE, "--memory", "x"], "--memory 'x': write a number above 0, or one for "),
        (["zb-h1", *SIZE, "--memory", "4,4"], "--memory gives 2 limits for 4 ranks: write one"),
        (["run"], "run is a measured run: show it with zerobubble view run, write it with zerob"),
        (["run/timeline.json"], "run/timeline.json is a measured run: show it with zerobubble "),
        (["zb-h1", *SIZE, "--out", "no/where.json"], "cannot write no/where.json: No such file "),
        (["zb-h1", *SIZE, "--html", "no/a.html"], "cannot write no/a.html: No such file or "),
        (
            ["zb-h1", *SIZE, "--html", "mine.json"],
            "mine.json exists and is not a page of zerobubble",
        ),
    ],
)
def test_wrong_input_is_told_in_one_line(refused, tmp_path, argv, message):
    save(build("zb-h1", 4, 8), tmp_path / "mine.json")
    (tmp_path / "run").mkdir()
    timeline.save(a_run(), tmp_path / "run" / "timeline.json")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "my_file.py").write_text(MINE)
    (tmp_path / "bad.py").write_text("1 / 0")
    assert refused("show", *argv).startswith(f"zerobubble show: {message}")


def test_a_wrong_schedule_is_refused(refused, tmp_path):
    text = MINE.replace("BW(rank, i) for", "BW(rank, num_microbatches - 1 - i) for")
    (tmp_path / "my_file.py").write_text(text)
    message = refused("show", "my_file.py:my_schedule", "-p", 1, "-m", 2, status=1)
    assert message == (
        "zerobubble show: 1f1b: rank 0: BW1 of stage 0 runs before BW0 (rule "
        "microbatches-in-order): swap ops 2 and 3 (and 1 more)"
    )


words = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["zb-h1", "interleaved:v=", "a.json", "a.py:", "1,1,1,0", ":", ",", "."]),
    st.lists(st.floats(), min_size=4, max_size=5).map(lambda x: ",".join(map(str, x))),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=words, costs=words, ranks=st.none() | st.integers(1, 3))
def test_any_words_resolve_or_are_refused(tmp_path, monkeypatch, spec, costs, ranks):
    monkeypatch.chdir(tmp_path)
    with suppress(ZeroBubbleError):
        schedule, read = resolve(spec, ranks, 3, costs)
        assert schedule.num_stages == read.num_stages


def test_svg_writes_the_picture(zerobubble, refused, tmp_path):
    assert zerobubble("show", "zb-h1", *SIZE, "--svg", "picture.svg", "--json").status == 0
    timeline = simulate(build("zb-h1", 4, 8), Costs.uniform(4))
    assert (tmp_path / "picture.svg").read_text() == draw_svg(timeline)
    message = refused("show", "zb-h1", *SIZE, "--svg", "no/where.svg")
    assert message == "zerobubble show: cannot write no/where.svg: No such file or directory"


def test_an_option_of_the_search_says_how_a_name_holds_it(refused):
    line = refused("show", "po-h", *SIZE, "--placement", "looped:8")
    assert "a schedule brings its own; po-h:v=8 has 8 stages a rank" in line
