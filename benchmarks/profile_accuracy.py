"""How well does a plan foresee a step, and is its partition worth it? A GPT with a heavy head.

``python -m benchmarks.profile_accuracy`` profiles the layers on the ranks of this machine, plans,
and trains the plan and the equal split (with the schedule that a search finds for it). It does so
by turns, with a new profile in each, since the speed of a shared machine changes within a minute,
and prints the medians of forecast over measurement for the step and the ops, and of plan over equal
split. Run it with little else running.
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from benchmarks.timing import spread
from zerobubble.ir import Schedule, linear
from zerobubble.plan import make_plan
from zerobubble.plan.forecast import costs_of, forecast
from zerobubble.profile import Profile, stage_costs
from zerobubble.profiling import measure
from zerobubble.runtime import Pipeline, PipelineOptimizer
from zerobubble.runtime.device import keep_freed_memory
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.partition import split_layers
from zerobubble.runtime.trace import measured_costs
from zerobubble.search import search
from zerobubble.train.config import ModelConfig
from zerobubble.train.launch import end_with_launcher, launch
from zerobubble.train.model import reference_model

_NUM_WARM_UP = 2


@dataclass
class Contender:
    """A partition with its schedule, and by turns forecast over measurement."""

    name: str
    layers_per_stage: tuple[int, ...]
    schedule: Schedule
    pipe: Pipeline
    optimizer: PipelineOptimizer
    steps_ms: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


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
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.7, help="to measure a kind of layer")
    parser.add_argument("--validate", default="post")
    return parser.parse_args()


def _on_a_rank(options: argparse.Namespace) -> None:
    end_with_launcher()
    keep_freed_memory()  # as the trainer does
    torch.set_num_threads(1)
    config = ModelConfig(
        layers=options.layers, dim=options.dim, heads=8, vocabulary=options.vocabulary
    )
    model, size = reference_model(config), options.microbatch_size
    profile = _profile(model, options)
    contenders = [_planned(model, profile, options), _even(model, profile, options)]
    batch = model.sample_batch(size * options.microbatches)
    for turn in range(options.turns):
        if turn:
            profile = _profile(model, options)
        for each in contenders:
            _take_turn(each, profile, batch, options)
    for each in contenders:
        _compare_peak(each, profile, batch, options)
    if contenders[0].pipe.rank == 0:
        for each in contenders:
            _print(each)
        steps = (each.steps_ms for each in contenders)
        shares = [plan / even for plan, even in zip(*steps, strict=True)]
        print(f"\nstep of the plan over that of the equal split: {spread(shares).text(3)}")


def _profile(model: LayeredModel, options: argparse.Namespace) -> Profile:
    return measure(
        model,
        num_ranks=options.ranks,
        microbatch_sizes=[options.microbatch_size],
        validate=options.validate,
        seconds=options.seconds,
    )


def _planned(model: LayeredModel, profile: Profile, options: argparse.Namespace) -> Contender:
    batch_size = options.microbatches * options.microbatch_size
    plan = make_plan(profile, options.ranks, batch_size, validate=options.validate)
    return _contender("plan", model, plan.layers_per_stage, plan.schedule, options)


def _even(model: LayeredModel, profile: Profile, options: argparse.Namespace) -> Contender:
    placement = linear(options.ranks)
    stages = split_layers(profile.num_layers, options.ranks)
    costs = stage_costs(profile, options.microbatch_size, stages, placement)
    objective = "span" if options.validate == "post" else "makespan"
    rest = (options.ranks, options.microbatches, None, placement, objective, "quick")
    lengths, schedule = tuple(map(len, stages)), search(costs, *rest).schedule
    return _contender("equal split", model, lengths, schedule, options)


def _contender(
    name: str,
    model: LayeredModel,
    layers_per_stage: tuple[int, ...],
    schedule: Schedule,
    options: argparse.Namespace,
) -> Contender:
    pipe = Pipeline(
        model, schedule, layers_per_stage=layers_per_stage, num_recorded_steps=options.steps
    )
    optimizer = pipe.optimizer(torch.optim.AdamW, max_grad_norm=1e9, validate=options.validate)
    return Contender(name, layers_per_stage, schedule, pipe, optimizer)


def _take_turn(
    each: Contender,
    profile: Profile,
    batch: tuple[torch.Tensor, torch.Tensor],
    options: argparse.Namespace,
) -> None:
    steps_ms = _step(each, batch, _NUM_WARM_UP + options.steps)[_NUM_WARM_UP:]
    timelines = each.pipe.timelines()
    if not timelines:
        return
    of_stages = (profile, options.microbatch_size, each.layers_per_stage, each.schedule)
    each.steps_ms.append(float(np.median(steps_ms)))
    each.ratios["step"].append(forecast(*of_stages, options.validate).step_ms / each.steps_ms[-1])
    costs = costs_of(*of_stages)
    measured = measured_costs(timelines, costs)
    for kind in ("forward", "backward_input", "backward_weight"):
        pairs = zip(getattr(costs, kind), getattr(measured, kind), strict=True)
        for stage, (expected, found) in enumerate(pairs):
            each.ratios[f"{kind} of stage {stage}"].append(expected / found)


def _compare_peak(
    each: Contender,
    profile: Profile,
    batch: tuple[torch.Tensor, torch.Tensor],
    options: argparse.Namespace,
) -> None:
    """Compare the largest sum of activations of every rank with the bytes that are counted."""
    each.pipe.ledger.is_on = True
    each.pipe.step(*batch)
    counted = each.pipe.transport.gather_object(max(each.pipe.ledger.activation_bytes))
    of_stages = (profile, options.microbatch_size, each.layers_per_stage, each.schedule)
    expected = forecast(*of_stages, options.validate).activation_bytes
    for rank, (foreseen, found) in enumerate(zip(expected, counted or (), strict=False)):
        each.ratios[f"activations of rank {rank}"].append(foreseen / found)


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


def _print(each: Contender) -> None:
    lengths = ",".join(map(str, each.layers_per_stage))
    print(f"\n{each.name}: {lengths} layers, {each.schedule.placement}, {each.schedule.name}")
    print(f"steps by turns: {', '.join(f'{ms:.0f}' for ms in each.steps_ms)} ms")
    print("forecast / measured, median of the turns (quartiles)")
    for what, ratios in each.ratios.items():
        print(f"  {what:28} {spread(ratios).text(3)}")


if __name__ == "__main__":
    main()
