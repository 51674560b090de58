"""The command train with a schedule that offloads: the same losses, and errors before and in it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_train import command, environment, text  # noqa: F401
from tests.dist.moved import moved
from zerobubble import build
from zerobubble.formats.json import dumps

FLAGS = ("-p", "2", "--trace-steps", "0")


@pytest.fixture
def schedule(tmp_path: Path) -> str:
    path = tmp_path / "moved.json"
    path.write_text(dumps(moved(build("zb-h1", 2, 4), "OR")))
    return str(path)


def train(text: Path, *flags: str) -> "subprocess.CompletedProcess[str]":  # noqa: F811
    arguments = command(text, *FLAGS, *flags)
    return subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=100)


def losses(folder: Path) -> list[tuple[float, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["loss"], line["grad_norm"]) for line in lines]


@pytest.mark.timeout(250)
def test_losses_are_those_without_offload(text: Path, schedule: str) -> None:  # noqa: F811
    folder = text.parent / "offloaded"
    for flags in (["zb-h1"], [schedule, "--offload-dir", str(folder), "--verify-offload"]):
        finished = train(text, "--schedule", *flags)
        assert finished.returncode == 0, finished.stderr
    assert losses(text.parent / "out") == losses(text.parent / "out-2")
    assert not list(folder.iterdir())


@pytest.mark.timeout(120)
def test_too_little_host_memory_ends_the_run(text: Path, schedule: str) -> None:  # noqa: F811
    finished = train(text, "--schedule", schedule, "--host-memory", "1KiB")
    assert finished.returncode == 1
    last = finished.stderr.strip().splitlines()[-1]
    assert "OffloadError" in last
    assert "bytes do not fit into the host pool, which holds 0 of at most 1024 bytes" in last
    assert (text.parent / "out" / "schedule.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--offload-dir", "/proc/none"], "cannot offload to the folder /proc/none: "),
        (["--host-memory", "12"], "host_memory '12': write bytes with a unit, as in 40GiB"),
    ],
)
def test_what_cannot_work_is_refused_before_training(text, schedule, flags, message) -> None:  # noqa: F811
    finished = train(text, "--schedule", schedule, *flags)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert not (text.parent / "out").exists()
