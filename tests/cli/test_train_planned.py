"""From profile to plan to a planned run, with the commands that a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobubble.cli import main

SHAPE = "--layers=2 --dim=16 --heads=2 --sequence=16".split()
REST = (
    "--steps=8 --eval-every=4 --eval-batches=1 --threads=1 --warmup-steps=2 --trace-steps=2"
).split()


def zerobubble(*arguments: object) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "zerobubble", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a text, a profile for a device that is not here, and a plan of it."""
    path = tmp_path_factory.mktemp("planned")
    (path / "text.txt").write_text("pack my box with five dozen liquor jugs. " * 200)
    profile = ("profile", *SHAPE, "--device-spec", "h100", "--microbatch-size", "2")
    assert zerobubble(*profile, "--out", path / "profile.json").returncode == 0
    plan = ("plan", "-p", 2, "--profile", path / "profile.json", "--batch-size", 8)
    made = zerobubble(*plan, "--schedule", "1f1b", "--out", path / "plan.json")
    assert made.returncode == 0, made.stderr
    return path


def train(folder: Path, out: str, *flags: object) -> "subprocess.CompletedProcess[str]":
    text = folder / "text.txt"
    return zerobubble("train", *SHAPE, *REST, "--paths", text, "--out", folder / out, *flags)


def losses(folder: Path, out: str) -> list[float]:
    lines = (folder / out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.timeout(300)
def test_a_plan_runs_is_compared_and_replanned_with_the_same_losses(folder: Path) -> None:
    followed = train(folder, "followed", "--plan", folder / "plan.json")
    assert followed.returncode == 0, followed.stderr
    for expected in (
        "schedule 1f1b, placement linear: 2 ranks, 4 microbatches of 2 sequences of 16 bytes",
        "forecast step ",
        "of the span, from the plan\n",
        "step time: forecast ",
        "warning: measurement and forecast differ by more than 10%: ",
    ):
        assert expected in followed.stdout
    plan = json.loads((folder / "plan.json").read_text())
    assert json.loads((folder / "followed" / "plan.json").read_text()) == plan
    assert "batch_size = 8\n" in (folder / "followed" / "config.toml").read_text()

    replanned = train(folder, "replanned", "--plan", folder / "plan.json", "--replan-after", 4)
    assert replanned.returncode == 0, replanned.stderr
    assert "replanned after step 4: " in replanned.stdout
    assert (folder / "replanned" / "schedule-after-4.json").exists()
    assert losses(folder, "replanned") == losses(folder, "followed")

    again = zerobubble(
        "train", "--config", folder / "followed" / "config.toml", "--out", folder / "again"
    )
    assert again.returncode == 0, again.stderr
    assert losses(folder, "again") == losses(folder, "followed")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers", 3], "the plan is for reference with 4 layers, but the model has 5"),
        (["--ranks", 3], "ranks is 3, but the plan has 2: leave it out, or plan anew"),
        (["--batch-size", 4], "batch_size is 4, but the plan has 8"),
        (["--schedule", "zb-h2"], "schedule is zb-h2, but the plan has 1f1b"),
        (["--plan", "missing.json"], "cannot read missing.json: No such file or directory"),
        (["--replan-after", 8], "replan_after 8 leaves none of 8 steps to run"),
    ],
)
def test_what_contradicts_the_plan_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: list, message: str
) -> None:
    assert message in refused(folder, capsys, "--plan", folder / "plan.json", *flags)


@pytest.mark.parametrize("length", [0, 10, 400, -3])
def test_a_damaged_plan_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    text = (folder / "plan.json").read_text()
    (tmp_path / "cut.json").write_text(text[:length])
    assert "cut.json: line " in refused(folder, capsys, "--plan", tmp_path / "cut.json")


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    """Give the one line with which a run is refused before it begins."""
    fixed = (*SHAPE, *REST, "--paths", folder / "text.txt", "--out", folder / "refused")
    assert main(["train", *map(str, (*fixed, *flags))]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert not (folder / "refused").exists()
    return errors
