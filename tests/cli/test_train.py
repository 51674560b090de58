"""The command train with real processes: output, failure, kill and bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerobubble.cli import main

TINY = (
    "--layers=2 --dim=16 --heads=2 --sequence=16 --batch-size=8 --microbatches=4 --steps=6 "
    "--eval-every=3 --eval-batches=1 --threads=1 --warmup-steps=2"
).split()

FAIL_IN_STAGE_1_STEP_3 = """
import os
if "RANK" in os.environ:
    from zerobubble.runtime.stage import Stage
    plain, calls = Stage.forward, []
    def forward(self, microbatch):
        if self.number == 1 and microbatch == 2 and self.module.training:
            calls.append(microbatch)
            if len(calls) == 3:
                raise ValueError("the layer broke")
        return plain(self, microbatch)
    Stage.forward = forward
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("pack my box with five dozen liquor jugs. " * 200)
    return path


def command(text: Path, *flags: str) -> list[str]:
    out = str(text.parent / "out")
    arguments = ["train", *TINY, "--paths", str(text), *flags, "--out", out]
    return [sys.executable, "-m", "zerobubble", *arguments]


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | more


def start(arguments: list[str], **more: str) -> "subprocess.Popen[str]":
    """Start a command with a mark in its environment, by which all its processes can be found."""
    return subprocess.Popen(
        arguments,
        env=environment(TEST_MARK=arguments[-1], **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(started: "subprocess.Popen[str]") -> list[int]:
    """List the live processes that a started command consists of."""
    mark = f"TEST_MARK={started.args[-1]}".encode()
    return [
        int(environ.parent.name)
        for environ in Path("/proc").glob("[0-9]*/environ")
        if mark in read_bytes(environ).split(b"\0")
    ]


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended, or belongs to somebody else
        return b""


def wait_until(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


@pytest.mark.timeout(120)
def test_two_ranks_train_and_leave_a_whole_run_folder(text: Path) -> None:
    started = start(command(text, "-p", "2"))
    output, errors = started.communicate(timeout=100)
    assert started.returncode == 0, errors
    assert errors == ""
    for expected in (
        "schedule zb-h1, placement linear: 2 ranks, 4 microbatches of 2 sequences of 16 bytes",
        "rank 0: layers embedding to block 0, ",
        "rank 1: layers block 1 to head, ",
        "stage 0: 100% of parameter-gradient FLOPs in W; norms in B\n",
        "stage 1: 100% of parameter-gradient FLOPs in W; norms in B\n",
        "forecast bubble",
        "loss: first",
        "bubble of the span: forecast",
        "optimizer: 6 steps, ",
        "rank 1 ",
    ):
        assert expected in output
    run = text.parent / "out"
    timeline = json.loads((run / "timeline.json").read_text())
    assert [len(ops) for ops in timeline["steps"][-1]["start"]] == [12, 12]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.timeout(120)
def test_a_failing_rank_ends_all_and_is_named_last(text: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAIL_IN_STAGE_1_STEP_3)
    python_path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    started = start(command(text, "-p", "3", "--schedule", "1f1b"), PYTHONPATH=python_path)
    _, errors = started.communicate(timeout=100)
    assert started.returncode == 1
    cause = "zerobubble train: rank 1, F2 of stage 1, step 3: ValueError: the layer broke"
    assert errors.strip().splitlines()[-1] == cause
    assert "Traceback" not in errors
    assert processes_of(started) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_nothing_is_left_running_after_a_kill(text: Path, victim: str) -> None:
    started = start(command(text, "-p", "2", "--steps", "100000"))
    metrics = text.parent / "out" / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, seconds=60)
        ranks = [pid for pid in processes_of(started) if pid != started.pid]
        assert len(ranks) == 2
        os.kill(max(ranks) if victim == "rank" else started.pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(started), seconds=10)
    finally:
        for pid in processes_of(started):
            os.kill(pid, signal.SIGKILL)
        _, errors = started.communicate(timeout=10)
    if victim == "rank":
        assert started.returncode == 1
        assert "SIGKILL" in errors.strip().splitlines()[-1]


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run the command in this process; return its one line of complaint."""
    assert main(["train", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("zerobubble train: ")
    return captured.err.removeprefix("zerobubble train: ").strip()


def test_an_unknown_schedule_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refusal(capsys, "--schedule", "zb-h9")
    assert complaint.startswith("unknown schedule 'zb-h9': did you mean zb-h2? known are ")
    assert "1f1b" in complaint


def test_microbatches_that_do_not_divide_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refusal(capsys, "-m", "3")
    assert complaint == "batch size 16 is not divisible by 3 microbatches: use 15 or 18"


def test_more_stages_than_layers(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refusal(capsys, "-p", "5", "--layers", "2")
    assert complaint == (
        "5 stages need at least as many layers, but there are 4: use fewer ranks or stages, or a "
        "deeper model"
    )


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    complaint = refusal(capsys, "--device", "cuda")
    assert complaint == "device cuda: no CUDA device is available here: use --device cpu"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "cannot read {}: No such file or directory"),
        (lambda path: path.mkdir(), "{} holds no text: give a file or a folder of text"),
        (lambda path: path.write_text(""), "{} holds no text: give a file or a folder of text"),
        (lambda path: path.write_text("short"), "5 bytes of text for training are less than"),
    ],
    ids=["missing", "empty folder", "empty file", "too short"],
)
def test_data_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, make, expected: str
) -> None:
    path = tmp_path / "data"
    make(path)
    assert refusal(capsys, "--paths", str(path)).startswith(expected.format(path))


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[model\ndim = 1", "{}: not valid TOML: "),
        ("[model]\ndims = 64", "{}: [model] has no key dims: did you mean dim?"),
        ("[modle]\ndim = 64", "{}: unknown section [modle]: did you mean model?"),
        ('[model]\ndim = "wide"', "{}: [model] dim "),
    ],
    ids=["malformed", "unknown key", "unknown section", "wrong type"],
)
def test_a_configuration_file_that_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, toml: str, expected: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml)
    assert refusal(capsys, "--config", str(path)).startswith(expected.format(path))


def test_an_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refusal(capsys, "--stepz", "3")
    assert (
        complaint
        == "unrecognized option --stepz: did you mean --steps? (see zerobubble train --help)"
    )


@pytest.mark.timeout(120)
def test_a_configuration_that_can_be_read_only_once_reaches_every_rank(text: Path) -> None:
    arguments = command(text, "-p", "2")
    once = b"[run]\nseed = 5\nsteps = 2\n"
    given = [word for word in arguments if not word.startswith("--steps")]
    given[given.index("train") + 1 : given.index("train") + 1] = ["--config", "/dev/stdin"]
    done = subprocess.run(given, env=environment(), input=once, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    run = text.parent / "out"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert "seed = 5" in (run / "config.toml").read_text()


def test_a_broken_schedule_file_is_one_line_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    main(["show", "zb-h1", "-p", "2", "-m", "4", "--out", str(path)])
    path.write_text(path.read_text().replace('"W3@1"', '"W2@1"'))
    capsys.readouterr()
    assert main(["train", "--schedule", str(path), "-p", "2", "-m", "4"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("zerobubble train: zb-h1: rank 1: W2 of stage 1 runs 2 times")
    assert captured.err.count("\n") == 1


@pytest.mark.timeout(120)
def test_a_rank_that_is_asked_to_end_is_named(text: Path) -> None:
    started = start(command(text, "-p", "2", "--steps", "100000"))
    metrics = text.parent / "out" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, seconds=60)
    os.kill(max(pid for pid in processes_of(started) if pid != started.pid), signal.SIGTERM)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 1
    assert "rank 1" in errors.strip().splitlines()[-1]


@pytest.mark.parametrize("out", [".", "/", ""])
def test_an_output_folder_without_a_name_is_refused(
    capsys: pytest.CaptureFixture[str], text: Path, out: str
) -> None:
    assert main(["train", *TINY, "-p", "1", "--paths", str(text), "--out", out]) == 2
    assert "names no new folder" in capsys.readouterr().err
