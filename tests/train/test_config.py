import dataclasses
import subprocess
import sys

import pytest

from zerobubble.errors import UsageError
from zerobubble.train.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ReportConfig,
    RunConfig,
    TrainConfig,
)
from zerobubble.train.learning_rate import learning_rate

SECTIONS = (RunConfig, ModelConfig, DataConfig, OptimizerConfig, ReportConfig)


def test_a_name_is_used_by_one_section_only():
    names = [setting.name for section in SECTIONS for setting in dataclasses.fields(section)]
    assert sorted(names) == sorted(set(names))


def test_importing_the_configuration_leaves_torch_unimported():
    modules = "zerobubble.train.config_file, zerobubble.train.data"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunConfig(ranks=0), "ranks must be at least 1, not 0"),
        (lambda: RunConfig(microbatches=-1), "microbatches must be at least 1, not -1"),
        (lambda: RunConfig(steps=0), "steps must be at least 1, not 0"),
        (lambda: RunConfig(replan_after=-1), "replan_after must be at least 0, not -1"),
        (
            lambda: RunConfig(steps=5, replan_after=5),
            "replan_after 5 leaves none of 5 steps to run",
        ),
        (lambda: RunConfig(seed=-1), "seed must be at least 0 and below 2**63, not -1"),
        (lambda: RunConfig(threads=-2), "threads must be at least 0, not -2"),
        (lambda: RunConfig(timeout_s=0.0), "timeout_s must be above 0, not 0.0"),
        (lambda: RunConfig(device="tpu"), "device must be one of cpu, cuda, not 'tpu'"),
        (lambda: RunConfig(precision="fp8"), "precision must be one of fp32, bf16, not 'fp8'"),
        (lambda: RunConfig(recompute="all"), "recompute must be one of off, light, not 'all'"),
        (lambda: ModelConfig(layers=0), "layers must be at least 1, not 0"),
        (lambda: ModelConfig(sequence=0), "sequence must be at least 1, not 0"),
        (lambda: ModelConfig(ffn_multiple=-1.0), "ffn_multiple must be above 0, not -1.0"),
        (
            lambda: ModelConfig(dim=100, heads=8),
            "dim 100 does not give 8 heads an even number of channels each: use 96 or 112",
        ),
        (
            lambda: ModelConfig(dim=12, heads=4),
            "dim 12 does not give 4 heads an even number of channels each: use 8 or 16",
        ),
        (lambda: DataConfig(batch_size=0), "batch_size must be at least 1, not 0"),
        (
            lambda: DataConfig(held_back_share=1.0),
            "held_back_share must be between 0 and 1, not 1.0",
        ),
        (lambda: OptimizerConfig(lr=0.0), "lr must be above 0, not 0.0"),
        (lambda: OptimizerConfig(lr=float("nan")), "lr must be above 0, not nan"),
        (lambda: OptimizerConfig(lr=float("inf")), "lr must be above 0, not inf"),
        (lambda: OptimizerConfig(beta2=1.0), "beta2 must be at least 0 and below 1, not 1.0"),
        (
            lambda: OptimizerConfig(min_lr_share=1.5),
            "min_lr_share must be from 0 to 1, not 1.5",
        ),
        (lambda: ReportConfig(eval_every=0), "eval_every must be at least 1, not 0"),
        (lambda: ReportConfig(trace_steps=-1), "trace_steps must be at least 0, not -1"),
        *(
            (
                lambda steps=steps: ReportConfig(trace_steps=steps),
                f"trace_steps must be a number, or a range from 1 on like 5-7, not '{steps}'",
            )
            for steps in ("7-5", "0-2", "x", "5-", "-5", "5-7-9", "")
        ),
        (
            lambda: TrainConfig(run=RunConfig(steps=6), report=ReportConfig(trace_steps="5-7")),
            "trace_steps 5-7 goes beyond the 6 steps of the run: use numbers from 1 to 6",
        ),
        (
            lambda: TrainConfig(
                run=RunConfig(replan_after=9), report=ReportConfig(trace_steps="5-7")
            ),
            "trace_steps 5-7 excludes replan_after, which measures the steps before it: give the "
            "number of last steps",
        ),
        (
            lambda: TrainConfig(run=RunConfig(microbatches=4), data=DataConfig(batch_size=10)),
            "batch size 10 is not divisible by 4 microbatches: use 8 or 12",
        ),
        (
            lambda: TrainConfig(run=RunConfig(microbatches=4), data=DataConfig(batch_size=3)),
            "batch size 3 is not divisible by 4 microbatches: use 4",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_in_one_line(make, message):
    with pytest.raises(UsageError) as refusal:
        make()
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("trace_steps", "num_last", "chosen"),
    [(0, 0, None), (3, 3, None), ("5-7", 0, range(5, 8)), ("6-6", 0, range(6, 7))],
)
def test_recorded_are_the_last_steps_or_chosen_ones(trace_steps, num_last, chosen):
    config = ReportConfig(trace_steps=trace_steps)
    assert (config.num_last_steps, config.chosen_steps) == (num_last, chosen)


@pytest.mark.parametrize(
    ("dim", "multiple", "expected"), [(128, 2.5, 320), (128, 8 / 3, 341), (2, 0.1, 1)]
)
def test_the_feed_forward_dim_is_a_multiple_of_dim(dim, multiple, expected):
    assert ModelConfig(dim=dim, heads=1, ffn_multiple=multiple).ffn_dim == expected


def schedule_of(*, steps, warmup_steps, lr=1.0, min_lr_share=0.2):
    config = TrainConfig(
        run=RunConfig(steps=steps),
        optimizer=OptimizerConfig(lr=lr, warmup_steps=warmup_steps, min_lr_share=min_lr_share),
    )
    return [learning_rate(step, config) for step in range(steps)]


def test_the_learning_rate_warms_up_linearly_then_falls_along_a_cosine():
    rates = schedule_of(steps=14, warmup_steps=5, lr=2.0)
    assert rates[:6] == pytest.approx([2 * n / 6 for n in (1, 2, 3, 4, 5, 6)])
    assert rates[9] == pytest.approx(2 * (0.2 + 0.8 / 2))  # half way between step 5 and step 13
    assert rates[7] == pytest.approx(2 * (0.2 + 0.8 * (1 + 2**-0.5) / 2))  # a quarter of the way
    assert rates[13] == pytest.approx(2 * 0.2)


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert schedule_of(steps=3, warmup_steps=9) == pytest.approx([0.1, 0.2, 0.3])


def test_the_learning_rate_of_a_single_step_without_warm_up_is_the_full_one():
    assert schedule_of(steps=1, warmup_steps=0) == [1.0]


def test_a_minimum_share_of_one_keeps_the_learning_rate():
    assert schedule_of(steps=4, warmup_steps=0, min_lr_share=1.0) == [1.0] * 4
