"""Does ``zerobubble export`` write what was asked for, of schedules and of measured runs?"""

import json
from pathlib import Path

import pytest

from tests.formats.test_python import MINE
from tests.formats.test_timeline import SCHEDULE, a_run
from zerobubble.cli import main
from zerobubble.costs import Costs
from zerobubble.formats import chrome, timeline, torch_csv
from zerobubble.formats.json import save
from zerobubble.measured import MeasuredRun
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.view.svg import draw_svg

SIZE = ("-p", 4, "-m", 8)
FILES = ("--trace", "a.json", "--csv", "a.csv", "--svg", "a.svg")


def written(folder):
    return [(folder / name).read_text() for name in FILES[1::2]]


@pytest.mark.parametrize(
    "spec", [("zb-h1", *SIZE), ("mine.json",), ("my_file.py:my_schedule", *SIZE)]
)
def test_a_schedule_is_simulated_and_written(zerobubble, tmp_path, spec):
    (tmp_path / "my_file.py").write_text(MINE.replace("1f1b", "mine"))
    save(build("zb-h2", 4, 8), tmp_path / "mine.json")
    assert zerobubble("export", *spec, "--costs", "1,2,1,0.5,0.5", *FILES) == (0, "", "")
    trace, csv, svg = written(tmp_path)
    name = json.loads(trace)["otherData"]["schedule"]
    if name != "mine":
        schedule = build(name, 4, 8)
        costs = Costs.uniform(4, f=1, b=2, w=1, transfer=0.5, kept=0.5)
        assert trace == chrome.dumps(simulate(schedule, costs))
        assert csv == torch_csv.dumps(schedule)
        assert svg == draw_svg(simulate(schedule, costs))


@pytest.fixture
def run(tmp_path):
    """Write a run of two recorded steps, 17 and 18."""
    (step,) = a_run().steps
    later = type(step)(18, step.timeline, step.host_start, step.host_end)
    (tmp_path / "run").mkdir()
    timeline.save(MeasuredRun(SCHEDULE, None, (step, later)), tmp_path / "run/timeline.json")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("spec", ["run", "run/timeline.json"])
@pytest.mark.parametrize(("flags", "number"), [((), 18), (("--step", 17), 17)])
def test_a_step_of_a_measured_run_is_written(zerobubble, tmp_path, spec, flags, number):
    assert zerobubble("export", spec, *flags, *FILES) == (0, "", "")
    trace, csv, svg = written(tmp_path)
    step = timeline.load("run/timeline.json").steps[number - 17]
    assert json.loads(trace)["otherData"]["step"] == str(number)
    assert trace == chrome.dumps(step)
    assert csv == torch_csv.dumps(SCHEDULE)
    assert svg == draw_svg(step.timeline, unit="ms")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["zb-h1", *SIZE],
            "there is nothing to write: give --trace FILE, --csv FILE or --svg FILE",
        ),
        (["zb-h1", "--svg", "a.svg"], "zb-h1 needs ranks and microbatches: -p is missing"),
        (["zb-h1", *SIZE, "--step", 3, *FILES], "zb-h1 is no measured run: leave out --step"),
        (
            ["run", "-p", 2, *FILES],
            "run is a measured run: leave out -p, -m, --costs, --off",
        ),
        (["run", "--step", 3, *FILES], "run has no step 3: recorded are 17, 18"),
        (["empty", *FILES], "empty is no run folder: it has no timeline.json"),
        (["none.json", *FILES], "none.json has no recorded step: run again with --trace-steps 1"),
        (["broken.json", *FILES], "broken.json: line 1, column 33: not JSON: "),
        (["no/where", *FILES], "unknown schedule 'no/where'"),
        (["x" * 5000, *FILES], "unknown schedule 'xxxxx"),
        (["run", "--svg", "no/where.svg"], "cannot write no/where.svg: No such file or directory"),
    ],
)
def test_wrong_input_is_told_in_one_line(refused, tmp_path, argv, message):
    (tmp_path / "empty").mkdir()
    timeline.save(MeasuredRun(SCHEDULE, None, ()), tmp_path / "none.json")
    (tmp_path / "broken.json").write_text('{"format": "zerobubble-timeline"')
    assert refused("export", *argv).startswith(f"zerobubble export: {message}")


def test_a_wrong_schedule_is_refused(refused, tmp_path):
    text = MINE.replace("BW(rank, i) for", "BW(rank, num_microbatches - 1 - i) for")
    (tmp_path / "my_file.py").write_text(text)
    words = ("my_file.py:my_schedule", "-p", 1, "-m", 2, *FILES)
    assert "(rule microbatches-in-order)" in refused("export", *words, status=1)


def test_help_names_the_formats(capsys):
    with pytest.raises(SystemExit) as end:
        main(["export", "--help"])
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert all(f"{flag} FILE" in out for flag in ("--trace", "--csv", "--svg"))


def test_copies_are_drawn_with_the_time_that_they_take(zerobubble):
    flags = ("po-f", *SIZE, "--svg", "a.svg")
    free = "copies of po-f take no time: --offload-bandwidth says how fast they are\n"
    assert zerobubble("export", *flags) == (0, free, "")
    assert "copy to the host" not in Path("a.svg").read_text()
    assert zerobubble("export", *flags, "--offload-bandwidth", 2) == (0, "", "")
    assert "copy to the host" in Path("a.svg").read_text()
