"""Does ``zerobubble compare`` put every schedule that is possible into one table?"""

import json

from tests.cli.test_show import KEYS
from zerobubble.schedules import REGISTRY


def test_all_known_schedules_are_compared(zerobubble):
    status, out, err = zerobubble("compare", "-p", 4, "-m", 8)
    assert (status, err) == (0, "")
    words = [line.split() for line in out.splitlines()]
    assert words[0] == "schedule span bubble makespan bubble_makespan peak_memory".split()
    assert [name for name, *_ in words[1:-1]] == [*REGISTRY]
    assert out.splitlines()[-1] == (
        "copies of po-f, po-h take no time: --offload-bandwidth says how fast they are"
    )
    assert "zb-h1 27 11.11% 27 11.11% 4".split() in words


def test_what_is_not_possible_is_told_with_the_reason(zerobubble):
    status, out, _ = zerobubble("compare", "-p", 4, "-m", 6)
    reason = "interleaved needs a multiple of 4 microbatches, not 6"
    assert status == 0
    assert out.splitlines()[-1] == f"interleaved is left out: {reason}"
    values = json.loads(zerobubble("compare", "-p", 4, "-m", 6, "--json").out)
    assert [row["schedule"] for row in values["schedules"]] == [
        name for name in REGISTRY if name != "interleaved"
    ]
    assert values["left_out"] == {"interleaved": reason}


def test_named_schedules_are_compared_in_the_given_order(zerobubble):
    words = ("zb-h2", "interleaved:v=4", "1f1b", "-p", 4, "-m", 8, "--costs", "1,1,1,0", "--json")
    status, out, err = zerobubble("compare", *words)
    rows = json.loads(out)["schedules"]
    assert (status, err) == (0, "")
    assert all([*row] == KEYS for row in rows)
    assert [row["schedule"] for row in rows] == ["zb-h2", "interleaved:v=4", "1f1b"]
    assert [row["span"] for row in rows] == [24, 26.25, 33]
    assert [row["makespan"] for row in rows] == [27, 26.25, 33]


def test_a_row_equals_what_show_prints(zerobubble):
    words = ("-p", 8, "-m", 24, "--costs", "18.522,18.086,9.337,.601,.366", "--json")
    for row in json.loads(zerobubble("compare", *words).out)["schedules"]:
        shown = json.loads(zerobubble("show", row["schedule"], *words).out)
        assert {key: shown[key] for key in KEYS} == row


def test_a_memory_limit_leaves_out_what_exceeds_it(zerobubble):
    words = ("-p", 4, "-m", 8, "--memory", 4, "--json")
    values = json.loads(zerobubble("compare", *words).out)
    fitting = {
        "1f1b", "gis", "gis-h", "grouped-interleaved", "po-f", "po-h", "v-1f1b", "v-half", "v-min",
        "zb-auto", "zb-h1", "zb-v",
    }  # fmt: skip
    assert {row["schedule"] for row in values["schedules"]} == fitting
    assert {*values["left_out"]} == {*REGISTRY} - fitting


def test_a_named_schedule_must_be_possible(refused):
    assert refused("compare", "interleaved", "-p", 4, "-m", 6, status=1) == (
        "zerobubble compare: interleaved needs a multiple of 4 microbatches, not 6"
    )
    assert refused("compare", "zb-h3", "-p", 4, "-m", 6).startswith(
        "zerobubble compare: unknown schedule 'zb-h3': did you mean zb-h2?"
    )
    assert refused("compare") == (
        f"zerobubble compare: {next(iter(REGISTRY))} needs ranks and microbatches: -p is missing"
    )
