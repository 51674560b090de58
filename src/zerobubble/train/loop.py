"""How is a model trained? The same loop on every rank."""

import os
import time
from contextlib import closing
from statistics import fmean

import torch

from zerobubble.costs import Costs
from zerobubble.ir import Schedule
from zerobubble.measured import MeasuredRun
from zerobubble.plan.data import Plan
from zerobubble.runtime import Offload, Pipeline, PipelineOptimizer
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.replanning import Replanned, replan
from zerobubble.search.problem import Objective
from zerobubble.train.config import TrainConfig
from zerobubble.train.data import TextData, load_data
from zerobubble.train.flops import flop_shares
from zerobubble.train.learning_rate import learning_rate
from zerobubble.train.model_source import find_encoding, find_model
from zerobubble.train.planned import Expected
from zerobubble.train.report import Report
from zerobubble.train.rules import read_size
from zerobubble.train.run_folder import RunFolder

_STEPS_MEASURED = 5


def train(config: TrainConfig, schedule: Schedule | Plan) -> None:
    """Train on this rank, evaluate now and then; rank 0 prints and writes the run folder.

    Args:
        config: of the run; one that follows the plan, if there is one.
        schedule: what the ranks run, or the plan that brings it along.

    Raises:
        UsageError: the model, data or device do not fit the configuration.
        PipelineError: an op failed, here or on another rank.
    """
    torch.set_num_threads(threads_per_rank(config.run.threads, _local_ranks()))
    model = find_model(config.model.source, config.model.source_config, config.model)
    data = load_data(config, find_encoding(model))
    pipe = build_pipeline(config, schedule, model)
    optimizer = build_optimizer(config, pipe)
    plan = schedule if isinstance(schedule, Plan) else None
    if pipe.rank > 0:
        _run(config, data, pipe, optimizer, plan)
        return
    report = Report(config, pipe, model, _expected_costs(config, pipe, plan), plan)
    with closing(RunFolder(config.run.out, config, schedule)) as folder:
        report.begin(data, str(folder.path))
        _run(config, data, pipe, optimizer, plan, report, folder)


def _expected_costs(config: TrainConfig, pipe: Pipeline, plan: Plan | None) -> Costs | None:
    if plan is not None:
        return plan.costs
    if config.model.source:
        return None
    return flop_shares(config.model, pipe.layers_of_stage, pipe.schedule.placement)


def build_pipeline(config: TrainConfig, schedule: Schedule | Plan, model: LayeredModel) -> Pipeline:
    """Build this rank's part of the model."""
    local_rank = os.environ.get("LOCAL_RANK", "0")
    device = "cpu" if config.run.device == "cpu" else f"cuda:{local_rank}"
    return Pipeline(
        model,
        schedule,
        device=device,
        seed=config.run.seed,
        autocast=torch.bfloat16 if config.run.precision == "bf16" else None,
        timeout=config.run.timeout_s,
        num_recorded_steps=max(config.report.num_last_steps, _replanning_steps(config)),
        recorded_steps=config.report.chosen_steps,
        offload=offload_of(config),
    )


def offload_of(config: TrainConfig) -> Offload:
    """Say where activations wait that the schedule offloads."""
    limit = config.run.host_memory
    return Offload(
        config.run.offload_dir or None,
        int(read_size("host_memory", limit)) if limit else None,
        config.run.verify_offload,
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
    plan: Plan | None = None,
    report: Report | None = None,
    folder: RunFolder | None = None,
) -> None:
    """Run all steps; every rank makes the same calls, only one reports.

    The metrics of a step are written when its outcome is known, without waiting for it.
    """
    unwritten: dict[str, float] = {}
    costs = None if plan is None else plan.costs
    chosen = config.report.chosen_steps
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
        if chosen and step + 1 == chosen[-1]:  # a run that dies later keeps what was chosen
            _write_measured(pipe.measured_run(costs), folder)
        if step + 1 == config.run.replan_after:
            found = _replan(config, pipe, plan)
            if report and folder and found:
                costs = found.costs if plan else None
                report.replanned(step + 1, found)
                folder.add_schedule(found.after.schedule, step + 1)
    optimizer.synchronize()
    _write(unwritten, optimizer, folder)
    measured = pipe.measured_run(costs)
    if report and folder and measured:
        if chosen is None:
            measured = measured.last(config.report.num_last_steps)
        _write_measured(measured, folder)
        report.end(optimizer, [step.timeline for step in measured.steps])


def _replanning_steps(config: TrainConfig) -> int:
    """Say how many steps must be recorded for a search with their times."""
    return min(config.run.replan_after, _STEPS_MEASURED)


def _replan(config: TrainConfig, pipe: Pipeline, plan: Plan | None) -> Replanned | None:
    objective: Objective = "span" if config.optimizer.validate == "post" else "makespan"
    if plan is None:
        return replan(pipe, objective=objective)
    return replan(pipe, plan.costs, Expected.of(plan).activation_limits, objective)


def _write(
    metrics: dict[str, float], optimizer: PipelineOptimizer, folder: RunFolder | None
) -> None:
    """Add what became of the last step to its metrics, and write them."""
    if folder and metrics:
        outcome = {"grad_norm": optimizer.grad_norm, "skipped": optimizer.num_skipped}
        folder.add_metrics(metrics | outcome)


def _write_measured(run: MeasuredRun | None, folder: RunFolder | None) -> None:
    if folder and run:
        folder.write_measured(run)


def _evaluate(config: TrainConfig, data: TextData, pipe: Pipeline) -> float:
    """Compute the mean loss over the held-back batches."""
    batches = map(data.eval_batch, range(config.report.eval_batches))
    return fmean(float(pipe.eval(*batch)) for batch in batches)
