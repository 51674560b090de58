"""How is the reference model trained? The same loop on every rank."""

import os
import time
from contextlib import closing
from statistics import fmean

import torch

from zerobubble.ir import Schedule
from zerobubble.measured import MeasuredRun, MeasuredStep
from zerobubble.runtime import Pipeline, PipelineOptimizer
from zerobubble.train.config import TrainConfig
from zerobubble.train.data import TextData, load_data
from zerobubble.train.forecast import forecast_costs
from zerobubble.train.learning_rate import learning_rate
from zerobubble.train.model import build_layers, loss, tied_parameters
from zerobubble.train.report import Report
from zerobubble.train.run_folder import RunFolder


def train(config: TrainConfig, schedule: Schedule) -> None:
    """Train on this rank, evaluate now and then; rank 0 prints and writes the run folder.

    Raises:
        UsageError: the model, data or device do not fit the configuration.
        PipelineError: an op failed, here or on another rank.
    """
    torch.set_num_threads(threads_per_rank(config.run.threads, _local_ranks()))
    data = load_data(config)
    pipe = build_pipeline(config, schedule)
    optimizer = build_optimizer(config, pipe)
    if pipe.rank > 0:
        _run(config, data, pipe, optimizer)
        return
    forecast = forecast_costs(config.model, pipe.layers_of_stage, schedule.placement)
    report = Report(config, pipe, forecast)
    with closing(RunFolder(config.run.out, config, schedule)) as folder:
        report.begin(data, str(folder.path))
        _run(config, data, pipe, optimizer, report, folder)


def build_pipeline(config: TrainConfig, schedule: Schedule) -> Pipeline:
    """Build this rank's part of the reference model."""
    local_rank = os.environ.get("LOCAL_RANK", "0")
    device = "cpu" if config.run.device == "cpu" else f"cuda:{local_rank}"
    return Pipeline(
        build_layers(config.model),
        schedule,
        loss,
        tied=tied_parameters(config.model),
        device=device,
        seed=config.run.seed,
        autocast=torch.bfloat16 if config.run.precision == "bf16" else None,
        timeout=config.run.timeout_s,
        num_recorded_steps=config.report.trace_steps,
    )


def build_optimizer(config: TrainConfig, pipe: Pipeline) -> PipelineOptimizer:
    """Build AdamW for this rank; only matrices decay."""
    settings = config.optimizer
    parameters = [parameter for _, parameter in pipe.named_parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))
    limit = settings.max_grad_norm or None
    return pipe.optimizer(adamw, max_grad_norm=limit, validate=settings.validate)


def threads_per_rank(wanted: int, local_ranks: int) -> int:
    """Choose the CPU threads of a rank: as asked, or the cores shared by the ranks here."""
    return wanted or max(1, len(os.sched_getaffinity(0)) // local_ranks)


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _run(
    config: TrainConfig,
    data: TextData,
    pipe: Pipeline,
    optimizer: PipelineOptimizer,
    report: Report | None = None,
    folder: RunFolder | None = None,
) -> None:
    """Run all steps; every rank makes the same calls, only one reports.

    The metrics of a step are written when its outcome is known, without waiting for it.
    """
    unwritten: dict[str, float] = {}
    evaluated = _evaluate(config, data, pipe)
    if report:
        report.evaluated(0, evaluated)
    for step in range(config.run.steps):
        begin = time.perf_counter()
        rate = learning_rate(step, config)
        for group in optimizer.param_groups:
            group["lr"] = rate
        step_loss = float(pipe.step(*data.batch(step)))
        _write(unwritten, optimizer, folder)
        optimizer.step()
        seconds = time.perf_counter() - begin
        unwritten = {
            "step": step + 1,
            "loss": step_loss,
            "learning_rate": rate,
            "seconds": seconds,
        }
        if report:
            report.step(step + 1, step_loss, seconds)
        if (step + 1) % config.report.eval_every == 0 or step + 1 == config.run.steps:
            unwritten["eval_loss"] = _evaluate(config, data, pipe)
            if report:
                report.evaluated(step + 1, unwritten["eval_loss"])
    optimizer.synchronize()
    _write(unwritten, optimizer, folder)
    timelines = pipe.timelines()
    if report and folder:
        first = config.run.steps - len(timelines) + 1
        steps = (MeasuredStep(first + i, t, t.start, t.end) for i, t in enumerate(timelines))
        folder.write_measured(MeasuredRun(pipe.schedule, None, tuple(steps)))
        report.end(optimizer, timelines)


def _write(
    metrics: dict[str, float], optimizer: PipelineOptimizer, folder: RunFolder | None
) -> None:
    """Add what became of the last step to its metrics, and write them."""
    if folder and metrics:
        outcome = {"grad_norm": optimizer.grad_norm, "skipped": optimizer.num_skipped}
        folder.add_metrics(metrics | outcome)


def _evaluate(config: TrainConfig, data: TextData, pipe: Pipeline) -> float:
    """Compute the mean loss over the held-back batches."""
    batches = map(data.eval_batch, range(config.report.eval_batches))
    return fmean(float(pipe.eval(*batch)) for batch in batches)
