"""Is a step of zb-h1 as much shorter than one of 1f1b as the simulation says?

Two processes with one thread each train the reference transformer under every schedule in turn,
step by step. Every step is simulated too, with the durations that its own ops had: the median of
every stage's F, B, W and BW. What is left between the two is the runtime: messages and waits.
"""

import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.timing import Rounds, alternate, print_table, spread
from zerobubble import Pipeline, PipelineOptimizer, build, simulate
from zerobubble.runtime.trace import measured_costs
from zerobubble.simulate import Timeline
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers, loss

BASE = "1f1b"
SCHEDULES = (BASE, "gpipe", "zb-h1")
NUM_RANKS = 2
NUM_MICROBATCHES = 4
NUM_SEQUENCES = 2
NUM_ROUNDS = 24
CONFIG = ModelConfig(layers=4, dim=384, heads=6, sequence=128)

Measured = tuple[dict[str, Rounds], dict[str, list[Timeline]]]


def main() -> None:
    """Measure and print."""
    seconds, timelines = on_ranks(measure, NUM_RANKS)[0]
    print_table(
        f"step time: {NUM_RANKS} ranks, {NUM_MICROBATCHES} microbatches of {NUM_SEQUENCES} "
        f"sequences of {CONFIG.sequence}, {CONFIG.layers} blocks of dim {CONFIG.dim}, 1 thread a "
        f"rank, {NUM_ROUNDS} alternating rounds, median (quartiles)",
        _lines(seconds, timelines),
    )


def measure() -> Measured:
    """Time the steps of all schedules on this rank; rank 0 gets the timelines too."""
    pipes = {name: _pipeline(name) for name in SCHEDULES}
    optimizers = {
        name: pipe.optimizer(torch.optim.SGD, lr=0.01, max_grad_norm=1.0)
        for name, pipe in pipes.items()
    }
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_MICROBATCHES * NUM_SEQUENCES, CONFIG.sequence)
    x, y = torch.randint(256, (2, *shape), generator=generator)
    ways = {name: partial(_time_step, pipe, optimizers[name], x, y) for name, pipe in pipes.items()}
    seconds = alternate(ways, NUM_ROUNDS)
    return seconds, {name: pipe.timelines() for name, pipe in pipes.items()}


def _pipeline(name: str) -> Pipeline:
    schedule = build(name, num_ranks=NUM_RANKS, num_microbatches=NUM_MICROBATCHES)
    return Pipeline(
        build_layers(CONFIG),
        schedule,
        loss,
        timeout=TIMEOUT_S,
        num_recorded_steps=NUM_ROUNDS,
    )


def _time_step(
    pipe: Pipeline, optimizer: PipelineOptimizer, x: torch.Tensor, y: torch.Tensor
) -> list[float]:
    """Time forward and backward of one batch, and the optimizer's part of the step."""
    dist.barrier()
    begin = time.perf_counter()
    pipe.step(x, y)
    between = time.perf_counter()
    optimizer.step()
    return [between - begin, time.perf_counter() - between]


def _lines(
    seconds: dict[str, Rounds], timelines: dict[str, list[Timeline]]
) -> Iterator[tuple[str, str]]:
    step = {name: rounds[:, 0] for name, rounds in seconds.items()}
    whole = {name: rounds.sum(1) for name, rounds in seconds.items()}
    paper = {name: _simulated_s(of_steps) for name, of_steps in timelines.items()}
    for name in SCHEDULES[1:]:
        yield f"{name} / {BASE}, forward and backward", spread(step[name] / step[BASE]).text(3)
        yield f"{name} / {BASE}, the same simulated", spread(paper[name] / paper[BASE]).text(3)
        yield f"{name} / {BASE}, with the optimizer", spread(whole[name] / whole[BASE]).text(3)
    for name in SCHEDULES:
        yield f"{name}, measured / simulated", spread(step[name] / paper[name]).text(3)
    yield f"{BASE}, forward and backward", spread(step[BASE] * 1e3).text(0, " ms")


def _simulated_s(of_steps: list[Timeline]) -> Rounds:
    """Simulate every step with the median durations of its own ops, without transfers."""
    return np.array(
        [simulate(step.schedule, measured_costs([step])).makespan / 1e3 for step in of_steps]
    )


if __name__ == "__main__":
    main()
