"""The command bench with real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from zerobubble import Schedule
from zerobubble.formats.json import save
from zerobubble.formats.timeline import load
from zerobubble.ir import BW, F, L, O, linear

KEYS = {"schedule", "validate", "span", "makespan", "measured", "ratio", "host_us_per_op"}
QUICK = ("bench", "runtime", "-m", 3, "--costs", "1,1,1,0.5", "--steps", 2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_json_has_a_row_for_each_schedule_and_way(zerobubble, monkeypatch, ranks):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = zerobubble(*QUICK, "-p", ranks, "--schedules", "1f1b,zb-auto:v=1,memory=2", "--json")
    rows = json.loads(found.out)["rows"]
    assert all(set(row) == KEYS for row in rows)
    names = [(row["schedule"], row["validate"]) for row in rows]
    assert names == [
        ("1f1b", "post"),
        ("1f1b", "sync"),
        ("zb-auto:v=1,memory=2", "post"),
        ("zb-auto:v=1,memory=2", "sync"),
    ]
    for row in rows:
        expected = row["span"] if row["validate"] == "post" else row["makespan"]
        assert row["ratio"] == row["measured"] / expected
        assert row["span"] >= 9


def test_out_receives_a_measured_timeline_for_each_line(zerobubble, refused, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = (*QUICK, "-p", 2, "--schedules", "1f1b,zb-auto:v=1,memory=2", "--validate=sync")
    assert zerobubble(*words, "--out", "runs/bench").status == 0
    for name in ("1f1b-sync", "zb-auto_v=1,memory=2-sync"):
        run = load(f"runs/bench/{name}/timeline.json")
        assert [step.number for step in run.steps] == [3, 4]
        for timeline in (step.timeline for step in run.steps):
            planned = run.costs.durations()
            for order, start, end in zip(
                run.schedule.orders, timeline.start, timeline.end, strict=True
            ):
                kinds, stages, _ = run.schedule.fields(order)
                assert end - start == pytest.approx(planned[kinds, stages], rel=0.001)
    message = "zerobubble bench: --out runs/bench exists: name a new folder"
    assert refused(*words, "--out", "runs/bench") == message


def test_text_has_a_line_for_each_schedule_within_the_memory(zerobubble):
    found = zerobubble(*QUICK, "-p", 1, "--schedules", "search", "--memory", 1, "--validate=sync")
    head, line = found.out.splitlines()
    assert head.split() == [
        "schedule", "validate", "span", "makespan", "measured", "ratio", "host", "us/op",
    ]  # fmt: skip
    assert line.split()[:4] == ["search", "sync", "9.0", "9.0"]


def test_copies_take_the_time_that_the_bandwidth_says(zerobubble):
    """F takes 4 ms, O and L 40 ms each, and BW 4 ms, one after the other."""
    flags = ("-p", 1, "--costs", "4,2,2,0", "--offload-bandwidth", 0.025)
    ops = [F(0, 0), O(0, 0), L(0, 0), BW(0, 0)]
    save(Schedule.from_ops("there-and-back", linear(1), 1, [ops]), "saved.json")
    found = zerobubble(*QUICK[:3], 1, *flags, "--schedules", "saved.json", "--steps", 2, "--json")
    assert [row["span"] for row in json.loads(found.out)["rows"]] == [88, 88]


def test_the_search_may_offload(zerobubble):
    flags = ("-p", 2, "--costs", "3,3,3,0", "--memory", 1, "--validate", "sync")
    words = (*QUICK[:3], 8, *flags, "--steps", 1, "--schedules", "search", "--json")
    without, offloads = (
        json.loads(zerobubble(*words, *more).out)["rows"][0]["span"]
        for more in ((), ("--offload", "auto", "--offload-bandwidth", 1))
    )
    assert offloads < without


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["runtim"], "there is no benchmark 'runtim': write zerobubble bench runtime"),
        (["runtime", "-p", "2"], "bench runtime needs ranks and microbatches: -m is missing"),
        (["runtime", "-p", "2", "-m", "2", "--steps", "0"], "--steps 0: write a number of 1"),
        (["runtime", "-p", "2", "-m", "2", "--validate", "no"], "invalid choice 'no'"),
        (["runtime", "-p", "2", "-m", "2", "--schedules", "zb"], "unknown schedule 'zb'"),
        (["runtime", "-p", "2", "-m", "2", "--schedules", "1f1b,"], "unknown schedule ''"),
        (["runtime", "-p", "2", "-m", "2", "--costs", "1,2"], "--costs '1,2': write F,B,W,comm"),
        (["runtime", "-p", "2", "-m", "2", "--memory", "0"], "--memory '0': write a number"),
        (
            ["runtime", "-p", "2", "-m", "2", "--schedules", "search", "--offload", "auto"],
            "--offload needs the speed of the copies: give --offload-bandwidth",
        ),
        (
            ["runtime", "-p", "1", "-m", "1", "--costs", "1e15,1,1,0"],
            "lasts 1e+12 s at these costs",
        ),
    ],
)
def test_bad_input_is_one_line(refused, flags, part):
    assert part in refused("bench", *flags)


def test_a_schedule_that_needs_more_memory_than_allowed_is_refused(refused):
    line = refused(*QUICK, "-p", 2, "--schedules", "1f1b", "--memory", 1, status=1)
    assert "memory" in line


def test_a_killed_rank_is_named():
    flags = ["bench", "runtime", "-p", "2", "-m", "4", "--costs", "50,50,50,1", "--steps", "1000"]
    command = subprocess.Popen(
        [sys.executable, "-m", "zerobubble", *flags, "--schedules", "1f1b"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        os.kill(_ranks_of(command.pid)[1], signal.SIGKILL)
        _, errors = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 1
    assert errors == "zerobubble bench: rank 1 was ended by SIGKILL\n"


def _ranks_of(parent):
    """Wait until both ranks run; give their processes, which are started in the order of ranks."""
    for _ in range(75):
        children = subprocess.run(
            ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(parent)], stdout=-1
        )
        lines = [line.split() for line in children.stdout.decode().splitlines()]
        found = sorted(int(pid) for pid, *words in lines if "spawn_main(" in " ".join(words))
        if len(found) == 2:
            return found
        time.sleep(0.2)
    raise AssertionError(f"the ranks did not start: {lines}")
