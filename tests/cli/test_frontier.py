"""Does ``zerobubble frontier`` print the same as table, drawing and JSON, and refuse mistakes?"""

import json

import pytest

from tests.cli.test_show import KEYS
from tests.strategies import PLAIN
from zerobubble.schedules import REGISTRY

OFFLOADS = "it offloads activations, and what is searched does not"
SIZE = ("-p", 4, "-m", 8)
TIMES = ("--costs", "1,1,1,0.1,0.5")
PER_STAGE = {"backward_input": 1, "backward_weight": 1, "transfer": [0, 0, 0]}


@pytest.fixture
def written(tmp_path):
    """Write costs to a file, and return its name."""

    def write(values):
        (tmp_path / "costs.json").write_text(json.dumps(values))
        return "costs.json"

    return write


def test_json_holds_every_point_with_the_numbers_of_show(zerobubble):
    status, out, err = zerobubble("frontier", *SIZE, "--memory", "4,5", "--json")
    values = json.loads(out)
    assert (status, err) == (0, "")
    assert {**values, "points": 0, "named": 0, "seconds": 0} == {
        "ranks": 4,
        "microbatches": 8,
        "objective": "span",
        "effort": "quick",
        "points": 0,
        "named": 0,
        "left_out": dict.fromkeys({*REGISTRY} - {*PLAIN}, OFFLOADS),
        "seconds": 0,
    }
    zb_h1 = values["points"][0]
    assert {key: value for key, value in zb_h1.items() if key not in KEYS} == {
        "memory": 4,
        "bound": 27,
        "bound_bubble": pytest.approx(1 / 9),
        "gap": 0,
        "is_proved_optimal": True,
        "is_best": False,
        "is_on_frontier": False,
    }
    assert (zb_h1["placement"], zb_h1["span"], zb_h1["peak_memory"]) == ("linear", 27, 4)
    zero_bubble = [each for each in values["points"] if each["is_on_frontier"]]
    assert {(each["peak_memory"], each["bubble"]) for each in zero_bubble} == {(4, 0)}
    compared = json.loads(zerobubble("compare", *SIZE, "--json").out)["schedules"]
    assert values["named"] == [
        row for row in compared if row["schedule"] in PLAIN and row["schedule"] != "zb-auto"
    ]


def test_the_table_holds_the_values_of_json(zerobubble):
    words = ("frontier", "-p", 3, "-m", 4, *TIMES, "--memory", "1,3", "--objective", "makespan")
    values = json.loads(zerobubble(*words, "--json").out)
    status, out, err = zerobubble(*words)
    title, header, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert title == "bubble of the makespan by memory limit: 3 ranks, 4 microbatches"
    names = header.split()[1:-1]
    assert names == ["linear", "v", "looped:2", "wave:4"]
    points = {(each["memory"], each["placement"]): each for each in values["points"]}
    assert len(points) == len(values["points"])
    for memory, line in zip([1, 1.5, 2, 3], lines, strict=False):
        first, *cells, bound = line.replace(" <", "<").split()
        assert float(first) == memory
        row = [points[memory, name] for name in names]
        assert cells == [
            f"{each['bubble_makespan']:.2%}"
            f"{'=' if each['is_proved_optimal'] else ''}{'<' if each['is_best'] else ''}"
            for each in row
        ]
        assert bound == f"{min(each['bound_bubble'] for each in row):.2%}"
    for each in values["named"]:
        assert f"{each['schedule']} " in out
    needs = "interleaved needs a multiple of 3 microbatches, not 4"
    assert f"\ninterleaved is left out: {needs}\n" in out


def test_the_drawing_names_placements_and_schedules(zerobubble):
    out = zerobubble("frontier", *SIZE, "--memory", "4,8").out
    assert "\nL linear  V v  O looped:2  W wave:4\n" in out
    assert "\033" not in out
    assert max(map(len, out.splitlines())) <= 80
    for name in {*PLAIN} - {"zb-auto"}:
        assert f"  {name} " in out


def test_costs_of_stages_choose_the_placements(zerobubble, written):
    path = written({"forward": [1, 1, 1, 1], **PER_STAGE})
    linear = json.loads(zerobubble("frontier", *SIZE, "--costs", path, "--json").out)["points"]
    assert {each["placement"] for each in linear} == {"linear"}
    assert [each["memory"] for each in linear] == [1, 2, 3, 4, 5, 6, 7, 8]
    halves = json.loads(zerobubble("frontier", "-p", 2, "-m", 2, "--costs", path, "--json").out)
    assert {each["placement"] for each in halves["points"]} == {"v", "looped:2"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("-p", 4), "frontier needs ranks and microbatches: -m is missing"),
        (("-p", 0, "-m", 1), "error parsing -p/--ranks: write a whole number of 1 or more"),
        ((*SIZE, "--costs", "1,1,1"), "--costs '1,1,1': write F,B,W,comm or "),
        ((*SIZE, "--costs", "nan,1,1,0"), "costs: forward must be between 0 and 1e100"),
        ((*SIZE, "--memory", "1,2,3"), "--memory '1,2,3': write the largest limit, or smallest,"),
        ((*SIZE, "--memory", "nan"), "--memory 'nan': write the largest limit, or smallest,"),
        ((*SIZE, "--memory", "much"), "--memory 'much': write the largest limit, or smallest,"),
        ((*SIZE, "--memory", "5,3"), "memory from 5 to 3 is no range"),
        ((*SIZE, "--memory", "0.5"), "no schedule fits into memory 0.5: one microbatch on all "),
        ((*SIZE, "--effort", "heroic"), "invalid choice 'heroic' for argument '--effort'."),
        ((*SIZE, "--objective", "fun"), "invalid choice 'fun' for argument '--objective'."),
        ((*SIZE, "--costs", "none.json"), "cannot read none.json: No such file or directory"),
        (("-p", 10**6, "-m", 10**6), "1000000 ranks are too many for a search: at most 4096"),
    ],
)
def test_wrong_words_are_told_in_one_line(refused, words, line):
    assert refused("frontier", *words).startswith(f"zerobubble frontier: {line}")


@pytest.mark.parametrize(
    ("forward", "line"),
    [
        (1, "costs.json: give a list with one value for each stage, to say how many"),
        ([1, 1, 1], "3 stages cannot be shared evenly by 4 ranks"),
        ([], "costs.json: costs: forward has 0 values for 1 stages"),
        ([1, 1, -1, 1], "costs.json: costs: forward must be between 0 and 1e100"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(refused, written, forward, line):
    path = written({**PER_STAGE, "forward": forward, "transfer": 0})
    assert refused("frontier", *SIZE, "--costs", path).startswith(f"zerobubble frontier: {line}")
