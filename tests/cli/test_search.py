"""The command search."""

import json
import shlex
from pathlib import Path

import pytest

from zerobubble.cli.search import written_short
from zerobubble.formats.json import dumps, load
from zerobubble.schedules import build

KEYS = {
    "schedule", "ranks", "microbatches", "placement", "span", "makespan", "bubble",
    "bubble_makespan", "peak_memory", "peak_memory_per_rank", "bound_span", "bound_makespan",
    "gap", "binding", "seconds", "objective", "offloaded_stages", "recomputed_stages",
    "light_recompute", "offload_to_compute_ratio", "replay",
}  # fmt: skip


def test_json_has_the_documented_keys_and_the_proved_value(zerobubble):
    found = zerobubble("search", "-p", 4, "-m", 8, "--memory", 4, "--placement", "linear", "--json")
    values = json.loads(found.out)
    assert found.status == 0
    assert set(values) == KEYS
    assert (values["span"], values["bound_span"], values["gap"]) == (27, 27, 0)
    assert values["binding"] == "rank 0, warm-up, limited by memory"


def test_text_shows_the_picture_and_the_certificate(zerobubble):
    found = zerobubble("search", "-p", 2, "-m", 4, "--memory", 2, "--placement", "v")
    assert found.status == 0
    *_, certificate = found.out.splitlines()
    assert certificate.startswith("proved optimal for this placement: no span below 12, ")
    assert "rank 1" in found.out


def test_the_schedule_found_is_written_and_verifies_within_the_limit(zerobubble, tmp_path):
    written = tmp_path / "best.json"
    zerobubble("search", "-p", 2, "-m", 4, "--memory", 1.5, "--placement", "v", "--out", written)
    assert load(written).num_ranks == 2
    assert zerobubble("verify", written, "--memory", 1.5).status == 0


def test_a_limit_that_no_schedule_meets_names_the_smallest_that_one_does(refused):
    line = refused("search", "-p", 2, "-m", 4, "--memory", 0.5)
    assert "allow at least 1 on rank 0" in line


def test_an_unknown_placement_names_the_known_forms(refused):
    line = refused("search", "-p", 2, "-m", 4, "--placement", "ring")
    assert "use linear, v, looped:2, wave:4" in line


def test_a_file_that_cannot_be_written_is_told_before_the_search(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("zerobubble.cli.search.search", lambda *_: pytest.fail("searched"))
    kind = "a schedule of zerobubble"
    line = refused("search", "-p", 2, "-m", 4, "--out", tmp_path)
    assert line == f"zerobubble search: {tmp_path} exists and is not {kind}: write to another file"


def test_a_search_that_fails_leaves_the_file_as_it_was(refused, tmp_path):
    kept, new = tmp_path / "kept.json", tmp_path / "new.json"
    kept.write_text(dumps(build("1f1b", 2, 2)))
    for path in (kept, new):
        refused("search", "-p", 2, "-m", 4, "--memory", 0.5, "--out", path)
    assert kept.read_text() == dumps(build("1f1b", 2, 2))
    assert not new.exists()


OFFLOADED = ("-p", 2, "-m", 4, "--placement", "looped:2", "--effort", "quick", "--memory", 0.5)


def test_offload_and_recompute_are_told_by_stage(zerobubble):
    asked = (*OFFLOADED, "--offload", "auto", "--offload-bandwidth", 1)
    values = json.loads(zerobubble("search", *asked, "--json").out)
    assert max(values["peak_memory_per_rank"]) <= 0.5
    assert values["offloaded_stages"]
    assert values["light_recompute"] is False
    assert values["bound_span"] <= values["span"]


def test_a_schedule_with_copies_is_written_and_shown_with_its_copies_timed(zerobubble, tmp_path):
    written = tmp_path / "best.json"
    asked = ("--offload", "all", "--offload-bandwidth", 0.5)
    found = zerobubble("search", *OFFLOADED, *asked, "--json", "--out", written)
    shown = zerobubble("show", written, *asked[2:], "--memory", 0.5, "--json")
    assert json.loads(shown.out)["span"] == pytest.approx(json.loads(found.out)["span"])


LIGHT = {
    "forward": 1, "backward_input": 1, "backward_weight": 1, "activation": 0.5,
    "activation_light": [0.25] * 4, "recompute_light": 0.25, "offload": 1, "load": 0.5,
}  # fmt: skip


@pytest.fixture
def with_light(zerobubble, tmp_path):
    """Search with light recompute; give what was printed, and the file."""
    costs, written = tmp_path / "costs.json", tmp_path / "best.json"
    costs.write_text(json.dumps(LIGHT))
    asked = ("--costs", costs, "--recompute", "light", "--offload", "auto")
    found = zerobubble("search", *OFFLOADED, *asked, "--json", "--out", written)
    return json.loads(found.out), written


def test_what_was_found_with_light_recompute_is_replayed_as_it_says(zerobubble, with_light):
    values, written = with_light
    flags = shlex.split(values["replay"])
    assert flags[2:] == ["--recompute", "light"]
    assert max(values["peak_memory_per_rank"]) <= 0.5
    assert zerobubble("verify", written, *flags, "--memory", 0.5).status == 0
    assert zerobubble("verify", written, *flags[:2], "--memory", 0.25).status == 1
    for command in ("show", "compare", "view"):
        found = json.loads(zerobubble(command, written, *flags, "--json").out)
        found = found.get("schedules", found.get("runs", [found]))[0]
        assert (found["span"], found["peak_memory"]) == (values["span"], values["peak_memory"])
    zerobubble("export", written, *flags, "--svg", "picture.svg")
    assert f">span {values['span']:.6g}, " in Path("picture.svg").read_text()


def test_k_is_that_of_the_stage_where_it_is_largest(with_light):
    values, _ = with_light
    assert values["offload_to_compute_ratio"] == pytest.approx(0.5 * (1 + 0.5) / 3.25)


def test_text_tells_k_and_how_to_replay(zerobubble):
    asked = ("--offload", "auto", "--offload-bandwidth", 1)
    *_, k, replay = zerobubble("search", *OFFLOADED, *asked).out.splitlines()
    assert k == "k: copies to the host and back take 0.667 of the compute of their stage, at most"
    assert replay.endswith(" with: --costs 1,1,1,0 --offload-bandwidth 1")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--offload", "auto"), "--offload needs the speed of the copies"),
        (("--offload", "auto", "--offload-bandwidth", "fast"), "write a number above 0"),
        (("--offload", "auto", "--offload-bandwidth", 0), "write a number above 0"),
        (("--offload-bandwidth", 1), "--offload is off: add --offload auto, or leave out"),
        (("--offload", "auto", "--offload-bandwidth", "1e-300"), "--offload-bandwidth '1e-300'"),
        (("--recompute", "light"), "give activation_light"),
        (("--memory", 0.4, "--recompute", "full"), "allow at least 0.5 on rank 0"),
    ],
)
def test_what_is_missing_for_offload_is_named(refused, flags, message):
    assert message in refused("search", *OFFLOADED, *flags)


@pytest.mark.parametrize(
    ("stages", "text"), [([], "none"), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")]
)
def test_stages_in_a_row_are_written_short(stages, text):
    assert written_short(stages) == text
