"""The training loop in one process: what it learns, writes and prints."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import zerobubble as zb
from zerobubble.cli import main
from zerobubble.formats.json import load
from zerobubble.formats.timeline import load as load_measured
from zerobubble.train.config import TrainConfig
from zerobubble.train.config_file import from_toml
from zerobubble.train.flops import flop_shares
from zerobubble.train.layers import parameter_counts
from zerobubble.train.learning_rate import learning_rate
from zerobubble.train.loop import threads_per_rank
from zerobubble.train.model import build_layers, reference_model
from zerobubble.train.run_folder import RunFolder

TINY = (
    "--layers=2 --dim=16 --heads=2 --sequence=16 --batch-size=4 --microbatches=2 --steps=12 "
    "--eval-every=5 --eval-batches=2 --threads=1 --ranks=1 --warmup-steps=2 --trace-steps=2"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny model on one rank, once."""
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    assert main(["train", *TINY, "--paths", str(text), "--out", str(folder / "out")]) == 0
    return folder / "out"


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_falls_from_the_uniform_one(run: Path) -> None:
    metrics = metrics_of(run)
    assert metrics[0]["loss"] == pytest.approx(np.log(256), abs=0.15)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2


def test_metrics_have_one_line_for_each_step_and_evaluations_in_between(run: Path) -> None:
    metrics = metrics_of(run)
    assert [line["step"] for line in metrics] == list(range(1, 13))
    assert [line["step"] for line in metrics if "eval_loss" in line] == [5, 10, 12]


def test_the_learning_rate_of_each_step_is_that_of_the_schedule(run: Path) -> None:
    config = from_toml((run / "config.toml").read_text(), "config.toml")
    rates = [line["learning_rate"] for line in metrics_of(run)]
    assert rates == [learning_rate(step, config) for step in range(12)]


def test_the_run_folder_holds_the_resolved_configuration_and_the_schedule(run: Path) -> None:
    config = tomllib.loads((run / "config.toml").read_text())
    assert (config["model"]["dim"], config["run"]["schedule"]) == (16, "zb-h1")
    assert load(run / "schedule.json") == zb.build("zb-h1", num_ranks=1, num_microbatches=2)


def test_the_timeline_of_the_last_steps_covers_every_op(run: Path) -> None:
    measured = load_measured(run / "timeline.json")
    assert (measured.schedule, measured.costs) == (load(run / "schedule.json"), None)
    assert [step.number for step in measured.steps] == [11, 12]
    for step in measured.steps:
        (start,), (end,) = step.timeline.start, step.timeline.end
        assert len(start) == len(end) == 6
        assert (start < end).all()


def test_chosen_steps_are_recorded(run: Path, tmp_path: Path) -> None:
    text, out = str(run.parent / "text.txt"), str(tmp_path / "out")
    chosen = ["--trace-steps", "3-4", "--paths", text, "--out", out]
    assert main(["train", *TINY, *chosen]) == 0
    measured = load_measured(tmp_path / "out" / "timeline.json")
    assert [step.number for step in measured.steps] == [3, 4]


def test_chosen_steps_are_kept_if_the_run_dies_later(
    run: Path, tmp_path: Path, monkeypatch
) -> None:
    def die_later(step: int, config: TrainConfig) -> float:
        if step == 4:
            raise RuntimeError("lost")
        return 1e-3

    monkeypatch.setattr("zerobubble.train.loop.learning_rate", die_later)
    chosen = ["--trace-steps", "2-3", "--paths", str(run.parent / "text.txt")]
    with pytest.raises(RuntimeError, match="lost"):
        main(["train", *TINY, *chosen, "--out", str(tmp_path / "out")])
    measured = load_measured(tmp_path / "out" / "timeline.json")
    assert [step.number for step in measured.steps] == [2, 3]


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(
    run: Path, tmp_path: Path
) -> None:
    losses = []
    for seed in ("0", "1"):
        out = tmp_path / seed
        text = str(run.parent / "text.txt")
        main(["train", *TINY, "--paths", text, "--out", str(out), "--seed", seed])
        losses.append([line["loss"] for line in metrics_of(out)])
    assert losses[0] == [line["loss"] for line in metrics_of(run)]
    assert losses[0] != losses[1]


def test_an_earlier_run_is_never_overwritten(tmp_path: Path) -> None:
    schedule = zb.build("1f1b", num_ranks=1, num_microbatches=1)
    paths = []
    for _ in range(3):
        folder = RunFolder(str(tmp_path / "run"), TrainConfig(), schedule)
        folder.close()
        paths.append(folder.path.name)
    assert paths == ["run", "run-2", "run-3"]


def test_a_run_folder_below_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    schedule = zb.build("1f1b", num_ranks=1, num_microbatches=1)
    with pytest.raises(zb.UsageError, match="cannot make the folder"):
        RunFolder(str(tmp_path / "file" / "run"), TrainConfig(), schedule)


def test_parameters_are_counted_as_they_are_built() -> None:
    config = TrainConfig().model
    layers = [build() for build in build_layers(config)]
    assert parameter_counts(reference_model(config)) == [
        sum(p.numel() for p in m.parameters()) for m in layers
    ]


def test_shares_count_the_flops_of_matrix_products() -> None:
    """Checked against the counter of torch on the whole model, one sequence."""
    from torch.utils.flop_counter import FlopCounterMode

    config = TrainConfig().model
    model = torch.nn.Sequential(*(build() for build in build_layers(config)))
    tokens = torch.zeros(1, config.sequence, dtype=torch.int64)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(tokens)
    placement = zb.build("1f1b", num_ranks=1, num_microbatches=1).placement
    costs = flop_shares(config, [range(config.layers + 2)], placement)
    assert costs.forward[0] * config.sequence == counter.get_total_flops()


def test_the_cores_are_shared_by_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [threads_per_rank(0, n) for n in (1, 3, 8, 16)] == [8, 2, 1, 1]
    assert threads_per_rank(5, 2) == 5
