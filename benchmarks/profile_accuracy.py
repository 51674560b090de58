"""How well does a profile foresee a step? A GPT with a heavy head on two ranks of this machine.

``python -m benchmarks.profile_accuracy`` profiles its layers, adds them up to the stages of a
pipeline, simulates the schedule, then trains it and prints forecast over measurement, for the step
and for each kind of op. Run it with little else running.
"""

import argparse
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch

from zerobubble.costs import Costs
from zerobubble.ir import Schedule
from zerobubble.profile import Profile, stage_costs
from zerobubble.profiling import measure
from zerobubble.runtime import Pipeline
from zerobubble.runtime.partition import split_layers
from zerobubble.runtime.trace import measured_costs
from zerobubble.schedules import build
from zerobubble.simulate import simulate
from zerobubble.train.config import ModelConfig
from zerobubble.train.launch import end_with_launcher, launch
from zerobubble.train.model import reference_model

_NUM_WARM_UP = 2


@dataclass(frozen=True)
class Run:
    """What was measured in training.

    Attributes:
        step_ms: median time from step to step.
        costs: median times of the stages' ops.
        peak_bytes: largest activations of every rank, boundary tensors included.
        optimizer_ms: median time of ``optimizer.step``, which includes no commit, of every rank.
    """

    step_ms: float
    costs: Costs
    peak_bytes: tuple[int, ...]
    optimizer_ms: tuple[float, ...]


def main() -> None:
    """Profile, forecast, train and print."""
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
    parser.add_argument("--schedule", default="zb-h1")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--validate", default="post")
    parser.add_argument("--layers-per-stage", type=lambda text: [int(n) for n in text.split(",")])
    return parser.parse_args()


def _on_a_rank(options: argparse.Namespace) -> None:
    end_with_launcher()
    torch.set_num_threads(1)
    config = ModelConfig(
        layers=options.layers, dim=options.dim, heads=8, vocabulary=options.vocabulary
    )
    schedule = build(options.schedule, options.ranks, options.microbatches)
    model, size = reference_model(config), options.microbatch_size
    began = perf_counter()
    profile = measure(
        model, num_ranks=options.ranks, microbatch_sizes=[size], validate=options.validate
    )
    seconds = perf_counter() - began
    run = _train(options, schedule, config)
    if run is not None:
        print(f"profiled in {seconds:.1f} s")
        _print(profile, schedule, options, run)


def _train(options: argparse.Namespace, schedule: Schedule, config: ModelConfig) -> Run | None:
    model = reference_model(config)
    pipe = Pipeline(
        model.layers,
        schedule,
        model.loss_fn,
        layers_per_stage=options.layers_per_stage,
        num_recorded_steps=options.steps,
    )
    optimizer = pipe.optimizer(torch.optim.AdamW, max_grad_norm=1e9, validate=options.validate)
    batch = model.sample_batch(options.microbatch_size * options.microbatches)
    marks, stepping = [perf_counter()], []
    for _ in range(_NUM_WARM_UP + options.steps):
        pipe.step(*batch)
        begin = perf_counter()
        optimizer.step()
        marks.append(perf_counter())
        stepping.append(marks[-1] - begin)
    optimizer.synchronize()
    gathered = pipe.transport.gather_object(
        (np.diff(marks)[_NUM_WARM_UP:] * 1e3, median(stepping[_NUM_WARM_UP:]) * 1e3)
    )
    timelines = pipe.timelines()
    peaks = pipe.transport.gather_object(_peak_bytes(pipe, batch))
    if gathered is None:
        return None
    step_ms = max(float(np.median(times)) for times, _ in gathered)
    return Run(step_ms, measured_costs(timelines), tuple(peaks), tuple(ms for _, ms in gathered))


def _peak_bytes(pipe: Pipeline, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    pipe.ledger.is_on = True
    pipe.step(*batch)
    return max(pipe.ledger.activation_bytes)


def _print(profile: Profile, schedule: Schedule, options: argparse.Namespace, run: Run) -> None:
    size, placement = options.microbatch_size, schedule.placement
    stages = split_layers(profile.num_layers, schedule.num_stages, options.layers_per_stage)
    costs = stage_costs(profile, size, stages, placement)
    timeline = simulate(schedule, costs)
    optimizer_ms = _optimizer_ms(profile, schedule, options)
    base = timeline.span if options.validate == "post" else timeline.makespan
    step_ms = base + optimizer_ms[_busiest(costs, schedule)] + profile.step_overhead_ms
    print(f"step {step_ms:.1f} / {run.step_ms:.1f} ms = {step_ms / run.step_ms:.3f}")
    for kind in ("forward", "backward_input", "backward_weight"):
        pairs = zip(getattr(costs, kind), getattr(run.costs, kind), strict=True)
        text = "  ".join(f"{a:.1f} / {b:.1f} = {a / b:.3f}" for a, b in pairs)
        print(f"{kind:16} {text}")
    print(f"optimizer        {optimizer_ms}, step() alone {run.optimizer_ms}")
    print(f"overhead {profile.step_overhead_ms:.2f} ms, {profile.link}")
    peaks = zip(timeline.peak_memory_per_rank, run.peak_bytes, strict=True)
    print("peak bytes       " + "  ".join(f"{a:.4g} / {b:.4g} = {a / b:.3f}" for a, b in peaks))
    for name, layer in zip(profile.layer_names, profile.at(size), strict=True):
        if name in ("embedding", "block 0", "head"):
            print(name, layer)


def _busiest(costs: Costs, schedule: Schedule) -> int:
    """Give the rank whose ops take the longest together."""
    work = costs.forward + costs.backward_input + costs.backward_weight
    ranks = range(schedule.num_ranks)
    return max(ranks, key=lambda rank: work[list(schedule.placement.stages_of(rank))].sum())


def _optimizer_ms(profile: Profile, schedule: Schedule, options: argparse.Namespace) -> list[float]:
    """Add up the optimizer's time of every rank; the last one in the chain never guesses."""
    stages = split_layers(profile.num_layers, schedule.num_stages, options.layers_per_stage)
    table, placement = profile.at(options.microbatch_size), schedule.placement
    last = list(dict.fromkeys(placement.stage_to_rank))[-1]
    return [
        sum(
            layer.plain_optimizer_ms if rank == last else layer.optimizer_ms
            for stage in placement.stages_of(rank)
            for layer in table[stages[stage].start : stages[stage].stop]
        )
        for rank in range(schedule.num_ranks)
    ]


if __name__ == "__main__":
    main()
