"""The command train with a schedule that offloads: the same losses, and no file left behind."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.test_train import TINY, command, start, text, wait_until  # noqa: F401
from tests.dist.moved import moved
from zerobubble import build
from zerobubble.cli import main
from zerobubble.formats.json import dumps


def schedule_file(folder: Path, num_ranks: int) -> str:
    path = folder / "moved.json"
    path.write_text(dumps(moved(build("zb-h1", num_ranks, 4), "OR", seed=1)))
    return str(path)


def train(text: Path, *flags: str) -> int:  # noqa: F811
    """Train on one rank, in this process."""
    out = str(text.parent / "out")
    return main(
        ["train", *TINY, "-p1", "--trace-steps=0", "--paths", str(text), "--out", out, *flags]
    )


def losses(folder: Path) -> list[tuple[float, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["loss"], line["grad_norm"]) for line in lines]


@pytest.mark.timeout(100)
def test_losses_are_those_without_offload(text: Path) -> None:  # noqa: F811
    out, folder = text.parent / "out", text.parent / "offloaded"
    to_file = ("--offload-dir", str(folder), "--verify-offload", "--host-memory", "1GiB")
    assert train(text, "--schedule", "zb-h1") == 0
    assert train(text, "--schedule", schedule_file(text.parent, 1), *to_file) == 0
    assert losses(out) == losses(text.parent / "out-2")
    assert len(losses(out)) == 6
    assert folder.exists()


def test_too_little_host_memory(text: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert train(text, "--schedule", schedule_file(text.parent, 1), "--host-memory", "1KiB") == 1
    error = capsys.readouterr().err
    assert error.startswith("zerobubble train: rank 0, O")
    assert "bytes do not fit into the host pool, which holds 0 of at most 1024 bytes" in error
    assert (text.parent / "out" / "schedule.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--offload-dir", "/proc/none"], "cannot offload to the folder /proc/none: "),
        (["--host-memory", "12"], "host_memory '12': write bytes with a unit, as in 40GiB"),
        (
            ["--host-memory", "8589934592GiB"],
            "host_memory '8589934592GiB': more bytes than 64 bits can count: write less than",
        ),
        (["--host-memory", "9" * 400 + "B"], ": more bytes than 64 bits can count: "),
    ],
)
def test_what_cannot_work_is_refused_before_training(text, flags, message, capsys) -> None:  # noqa: F811
    assert train(text, "-p2", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (text.parent / "out").exists()


@pytest.mark.timeout(120)
def test_a_killed_rank_leaves_no_file_and_whole_metrics(text: Path) -> None:  # noqa: F811
    folder = text.parent / "offloaded"
    flags = ("--schedule", schedule_file(text.parent, 2), "--offload-dir", str(folder))
    started = start(command(text, "-p2", "--steps=5000", *flags))
    metrics = text.parent / "out" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 500, 80)
    (path,) = folder.glob("*-rank1-*")
    os.kill(int(path.name.split("-pid")[1].split("-")[0]), signal.SIGKILL)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 1
    assert errors.strip().splitlines()[-1] == "zerobubble train: rank 1 was ended by SIGKILL"
    assert not list(folder.iterdir())
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()][:2] == [1, 2]
