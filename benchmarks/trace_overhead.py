"""How much longer does a step take while it is recorded?

One pipeline runs recorded and unrecorded steps in turn, so that a slow moment of the machine meets
both. Empty stages leave nothing but the runtime: they show the most that recording can cost, in
microseconds of an op. A small transformer stands for real stages. What reads the records after the
run is not in these times.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.host_overhead import Empty
from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.timing import Rounds, alternate, print_table, spread
from zerobubble import Pipeline, build
from zerobubble.runtime.partition import Layer
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers, loss

NUM_RANKS, NUM_MICROBATCHES = 2, 8
SCHEDULE = build("zb-h1", NUM_RANKS, NUM_MICROBATCHES)
CONFIG = ModelConfig(layers=4, dim=256, heads=4, sequence=128)
WAYS = {"plain": 0, "recorded": 1}
TIMES = ("wall time", "own time")


def main() -> None:
    """Measure and print."""
    for name, measure in (("empty stages", measure_empty), ("transformer", measure_transformer)):
        seconds = on_ranks(measure, NUM_RANKS)[0]
        print_table(
            f"recording: {name}, zb-h1, {NUM_RANKS} ranks, {NUM_MICROBATCHES} microbatches, "
            f"{len(seconds['plain'])} alternating rounds, median (quartiles)",
            _lines(seconds),
        )


def measure_empty() -> dict[str, Rounds]:
    """Time steps of stages that compute nothing."""
    batch = torch.ones(NUM_MICROBATCHES, 1)
    layers = [Empty] * NUM_RANKS
    return _measure(layers, lambda x, target: (x * target).sum(), (batch, batch), 500)


def measure_transformer() -> dict[str, Rounds]:
    """Time steps of the reference model, 4 blocks of dim 256, one sequence a microbatch."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (2, NUM_MICROBATCHES, CONFIG.sequence), generator=generator)
    return _measure(build_layers(CONFIG), loss, (x, y), 30)


def _measure(
    layers: Sequence[Layer],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    num_rounds: int,
) -> dict[str, Rounds]:
    pipe = Pipeline(layers, SCHEDULE, loss_fn, timeout=TIMEOUT_S)
    ways = {name: _timed(pipe, num_steps, batch) for name, num_steps in WAYS.items()}
    return alternate(ways, num_rounds, num_warm_up=5)


def _timed(
    pipe: Pipeline, num_recorded: int, batch: tuple[Tensor, Tensor]
) -> Callable[[], list[float]]:
    def timed() -> list[float]:
        pipe.recorder.steps = num_recorded
        dist.barrier()
        begin, begin_own = time.perf_counter(), time.thread_time()
        pipe.step(*batch)
        return [time.perf_counter() - begin, time.thread_time() - begin_own]

    return timed


def _lines(seconds: dict[str, Rounds]) -> Iterator[tuple[str, str]]:
    plain, recorded = seconds["plain"], seconds["recorded"]
    num_ops = len(SCHEDULE.orders[0])
    for index, what in enumerate(TIMES):
        yield f"a step, {what}", spread(plain[:, index] * 1e3).text(2, " ms")
        ratio = spread(recorded[:, index] / plain[:, index])
        yield f"recorded / plain, {what}", ratio.text(4)
        more = spread((recorded[:, index] - plain[:, index]) / num_ops * 1e6)
        yield f"recording of an op, {what}", more.text(2, " us")


if __name__ == "__main__":
    main()
