"""How well does a plan foresee a step, and is its partition worth it? A GPT with a heavy head.

``python -m benchmarks.profile_accuracy`` profiles the layers on the ranks of this machine, plans,
and trains the plan and the equal split (with the schedule that a search finds for it) by turns. It
prints forecast over measurement for the step, each kind of op and the peak of activations. Run it
with little else running.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from zerobubble.ir import Schedule, linear
from zerobubble.plan import make_plan
from zerobubble.plan.data import Forecast
from zerobubble.plan.forecast import costs_of, forecast
from zerobubble.profile import Profile, stage_costs
from zerobubble.profiling import measure
from zerobubble.runtime import Pipeline, PipelineOptimizer
from zerobubble.runtime.partition import split_layers
from zerobubble.runtime.trace import measured_costs
from zerobubble.search import search
from zerobubble.simulate import Timeline
from zerobubble.train.config import ModelConfig
from zerobubble.train.launch import end_with_launcher, launch
from zerobubble.train.model import reference_model

_NUM_WARM_UP = 2


@dataclass
class Contender:
    """A partition with its schedule, what was forecast and what was measured."""

    name: str
    layers_per_stage: tuple[int, ...]
    schedule: Schedule
    forecast: Forecast
    pipe: Pipeline | None = None
    optimizer: PipelineOptimizer | None = None
    steps_ms: list[float] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


def main() -> None:
    """Profile, plan, train and print."""
    options = _options()
    torch.set_num_threads(1)
    launch([_on_a_rank, options], options.ranks, threads=1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--microbatch-size", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=4, help="in a window")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--validate", default="post")
    return parser.parse_args()


def _on_a_rank(options: argparse.Namespace) -> None:
    end_with_launcher()
    torch.set_num_threads(1)
    config = ModelConfig(
        layers=options.layers, dim=options.dim, heads=8, vocabulary=options.vocabulary
    )
    model, size = reference_model(config), options.microbatch_size
    began = perf_counter()
    profile = measure(
        model, num_ranks=options.ranks, microbatch_sizes=[size], validate=options.validate
    )
    seconds = perf_counter() - began
    contenders = [_planned(profile, options), _even(profile, options)]
    batch = model.sample_batch(size * options.microbatches)
    for each in contenders:
        each.pipe = Pipeline(
            model,
            each.schedule,
            layers_per_stage=each.layers_per_stage,
            num_recorded_steps=options.steps,
        )
        each.optimizer = each.pipe.optimizer(
            torch.optim.AdamW, max_grad_norm=1e9, validate=options.validate
        )
        _step(each, batch, _NUM_WARM_UP)
    for _ in range(options.windows):
        for each in contenders:
            each.steps_ms += _step(each, batch, options.steps)[1:]
            each.timelines += each.pipe.timelines()
    for each in contenders:
        each.peak_bytes = each.pipe.transport.gather_object(_peak_bytes(each, batch)) or []
    if contenders[0].pipe.rank == 0:
        print(f"profiled in {seconds:.1f} s: overhead {profile.step_overhead_ms:.2f} ms a step")
        for each in contenders:
            _print(each, profile, size)
        steps = [float(np.median(each.steps_ms)) for each in contenders]
        print(f"step of the plan over that of the equal split: {steps[0] / steps[1]:.3f}")


def _planned(profile: Profile, options: argparse.Namespace) -> Contender:
    batch_size = options.microbatches * options.microbatch_size
    plan = make_plan(profile, options.ranks, batch_size, validate=options.validate)
    return Contender("plan", plan.layers_per_stage, plan.schedule, plan.forecast)


def _even(profile: Profile, options: argparse.Namespace) -> Contender:
    size, placement = options.microbatch_size, linear(options.ranks)
    stages = split_layers(profile.num_layers, options.ranks)
    costs = stage_costs(profile, size, stages, placement)
    objective = "span" if options.validate == "post" else "makespan"
    rest = (options.ranks, options.microbatches, None, placement, objective, "quick")
    lengths, schedule = tuple(map(len, stages)), search(costs, *rest).schedule
    expected = forecast(profile, size, lengths, schedule, options.validate)
    return Contender("equal split", lengths, schedule, expected)


def _step(
    contender: Contender, batch: tuple[torch.Tensor, torch.Tensor], count: int
) -> list[float]:
    """Train some steps, and give the times from step to step in ms."""
    marks = [perf_counter()]
    for _ in range(count):
        contender.pipe.step(*batch)
        contender.optimizer.step()
        marks.append(perf_counter())
    contender.optimizer.synchronize()
    return (np.diff(marks) * 1e3).tolist()


def _peak_bytes(contender: Contender, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    ledger = contender.pipe.ledger
    ledger.is_on = True
    contender.pipe.step(*batch)
    return max(ledger.activation_bytes)


def _print(contender: Contender, profile: Profile, size: int) -> None:
    schedule, expected = contender.schedule, contender.forecast
    print(
        f"\n{contender.name}: {','.join(map(str, contender.layers_per_stage))} layers, "
        f"{schedule.placement}, {schedule.name}"
    )
    print(_ratio("step", [expected.step_ms], [float(np.median(contender.steps_ms))], "ms"))
    costs = costs_of(profile, size, contender.layers_per_stage, schedule)
    measured = measured_costs(contender.timelines, costs)
    for kind in ("forward", "backward_input", "backward_weight"):
        print(_ratio(kind, getattr(costs, kind), getattr(measured, kind), "ms"))
    sizes = (expected.activation_bytes, contender.peak_bytes)
    print(_ratio("activations", *(np.array(each) / 2**20 for each in sizes), "MiB"))
    optimizer_ms = ", ".join(f"{ms:.1f}" for ms in expected.optimizer_ms)
    print(f"{'optimizer':16} forecast {optimizer_ms} ms")


def _ratio(what: str, forecasts: Sequence[float], measured: Sequence[float], unit: str) -> str:
    pairs = zip(forecasts, measured, strict=True)
    return f"{what:16} " + "  ".join(f"{a:.1f} / {b:.1f} {unit} = {a / b:.3f}" for a, b in pairs)


if __name__ == "__main__":
    main()
