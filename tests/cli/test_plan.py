"""The command plan."""

import json

import pytest

from tests.plan.profiles import profile_of
from zerobubble.plan.file import load
from zerobubble.profile.file import save

KEYS = {
    "model", "schedule", "ranks", "microbatches", "microbatch_size", "batch_size", "placement",
    "validate", "layers_per_stage", "step_ms", "span_ms", "makespan_ms", "bubble", "bound_ms",
    "gap", "binding", "samples_per_second", "tokens_per_second", "per_rank", "reasons",
    "offloaded_stages", "recomputed_stages",
}  # fmt: skip
BASICS = ("--profile", "profile.json", "-p", 2, "--batch-size", 8)


@pytest.fixture
def planned(zerobubble):
    """Run the command where a profile of four layers is."""
    save(profile_of([1, 1, 1, 3], sizes=(1, 2)), "profile.json")
    return zerobubble


def test_json_is_one_object_with_the_numbers_of_the_plan(planned):
    found = planned("plan", *BASICS, "--placement", "linear", "--sequence", 10, "--json")
    values = json.loads(found.out)
    assert (found.status, set(values)) == (0, KEYS)
    assert values["layers_per_stage"] == [3, 1]
    assert values["tokens_per_second"] == 10 * values["samples_per_second"]
    assert values["samples_per_second"] == pytest.approx(8e3 / values["step_ms"])
    first, second = values["per_rank"]
    assert (first["layers"], second["layers"]) == ("block 0-2", "block 3")
    assert (first["parameter_bytes"], first["weight_bytes"]) == (300, 1200)
    assert (first["limit_bytes"], first["compute_ms"]) == (None, 72)
    assert first["idle"] == pytest.approx(1 - 72 / values["step_ms"])


def test_text_has_a_line_for_each_rank_and_the_reasons(planned):
    found = planned("plan", *BASICS, "--memory", "4KiB,1MB", "--microbatch-size", 1)
    lines = found.out.splitlines()
    assert lines[0].startswith("blocks: 2 ranks, 8 microbatches of 1, placement ")
    assert lines[1].split() == [
        "rank", "layers", "parameters", "weights", "activations", "peak", "limit", "compute", "idle"
    ]  # fmt: skip
    assert lines[3].split()[0] == "0"
    assert lines[5].startswith("step ")
    assert all(line.startswith("- ") for line in lines[6:])


def test_the_plan_is_written_and_read_back(planned):
    planned("plan", *BASICS, "--schedule", "1f1b", "--validate", "sync", "--out", "plan.json")
    plan = load("plan.json")
    assert (plan.schedule.name, plan.validate, plan.batch_size) == ("1f1b", "sync", 8)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--memory", "40"], "--memory '40': write bytes with a unit, as in 40GiB"),
        (["--memory", "0GiB"], "--memory '0GiB': write bytes with a unit"),
        (
            ["--memory", "1GiB,1GiB,1GiB"],
            "3 limits for 2 ranks: write one, or one for each rank",
        ),
        (["--memory", "1KB"], "nothing fits into the memory"),
        (["--microbatch-size", "1,x"], "--microbatch-size '1,x': write numbers of 1 or more"),
        (["--microbatch-size", "4"], "the profile has microbatches of 1, 2 samples, not 4"),
        (["--sequence", "1,2"], "--sequence '1,2': write a number of 1 or more"),
        (["--batch-size", "9" * 5000], "--batch-size '999999999999...9999999999999': write a num"),
        (["--microbatch-size", "9" * 5000], "write numbers of 1 or more, as in 1,2,4"),
        (["--sequence", "9" * 16], "write a number of 1 or more, of up to 15 digits"),
        (["--batch-size", "99999999999999999999"], "--batch-size '99999999999999999999': write"),
        (["--batch-size", "999999999999"], "batch size 999999999999 is too large: 999999999999 mi"),
        (["--config", "small.json"], "--config is for --model"),
        (["--model", "hf:a.json"], "plan needs either --profile"),
        (["--device-spec", "h100"], "--device-spec is for --model"),
        (["--out", "."], ". exists and is not a plan of zerobubble"),
    ],
)
def test_wrong_flags_are_told_in_one_line(planned, refused, flags, problem):
    assert problem in refused("plan", *BASICS, *flags)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-p", 2, "--profile", "x.json"], "--batch-size is missing"),
        (["--profile", "x.json", "--batch-size", 8], "-p is missing"),
        (["-p", 2, "--batch-size", 8], "plan needs either --profile"),
        (["-p", 2, "--batch-size", 8, "--model", "hf:a.json"], "--model needs --device-spec"),
        (["-p", 2, "--batch-size", 8, "--profile", "x.json"], "cannot read x.json"),
    ],
)
def test_what_is_missing_is_told_in_one_line(refused, flags, problem):
    assert problem in refused("plan", *flags)


def test_sizes_have_the_unit_that_suits_the_largest(planned):
    found = planned("plan", *BASICS, "--placement", "linear", "--microbatch-size", 1)
    head, first, second = (line.split() for line in found.out.splitlines()[2:5])
    assert head == ["KiB"] * 4 + ["KiB", "ms"]
    assert (first[3], second[3]) == ("0.29", "0.29")
