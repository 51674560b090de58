"""Is real training faster than with torch.distributed.pipelining?

Two processes with one thread each train the same transformer with the same loss and optimizer in
four ways in turn: our 1f1b with an optimizer that waits for all ranks, our zb-h2 with one that
does not, and PyTorch's 1F1B and ZBVZeroBubble with a norm over all ranks as a user writes it. A
window of several steps is timed as a whole, without a barrier inside, since steps overlap.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleZBVZeroBubble

from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.timing import Rounds, alternate, print_table, spread
from benchmarks.torch_pipelining import stages_of, step_of
from zerobubble import Pipeline, build
from zerobubble.ir import linear, v_shape
from zerobubble.runtime.partition import split_layers
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers, loss

NUM_RANKS = 2
NUM_SEQUENCES = 4
NUM_STEPS = 8
NUM_ROUNDS = 4
MAX_GRAD_NORM = 1e6
CONFIG = ModelConfig(layers=6, dim=256, heads=4, sequence=128)
BASE = "torch 1F1B"


def main() -> None:
    """Measure and print."""
    for num_microbatches in (4, 8):
        seconds = on_ranks(partial(measure, num_microbatches), NUM_RANKS)[0]
        print_table(
            f"step to step: {NUM_RANKS} ranks, {num_microbatches} microbatches of {NUM_SEQUENCES} "
            f"sequences of {CONFIG.sequence}, {CONFIG.layers} blocks of dim {CONFIG.dim}, 1 thread "
            f"a rank, {NUM_ROUNDS} rounds of {NUM_STEPS} steps, median (quartiles)",
            _lines(seconds),
        )


def measure(num_microbatches: int) -> dict[str, Rounds]:
    """Time windows of steps in all ways."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_microbatches * NUM_SEQUENCES, CONFIG.sequence)
    x, y = torch.randint(256, (2, *shape), generator=generator)
    ways = {
        "1f1b sync": _ours("1f1b", "sync", num_microbatches, x, y),
        "zb-h2 post": _ours("zb-h2", "post", num_microbatches, x, y),
        BASE: _torch_1f1b(num_microbatches, x, y),
        "torch ZBVZeroBubble": _torch_zbv(num_microbatches, x, y),
    }
    return alternate({name: partial(_window, *way) for name, way in ways.items()}, NUM_ROUNDS)


Way = tuple[Callable[[], object], Callable[[], object]]  # a step, and what ends a window


def _ours(name: str, validate: str, num_microbatches: int, x: Tensor, y: Tensor) -> Way:
    schedule = build(name, num_ranks=NUM_RANKS, num_microbatches=num_microbatches)
    pipe = Pipeline(build_layers(CONFIG), schedule, loss, timeout=TIMEOUT_S)
    optimizer = pipe.optimizer(
        torch.optim.AdamW, lr=1e-4, max_grad_norm=MAX_GRAD_NORM, validate=validate
    )

    def step() -> None:
        pipe.step(x, y)
        optimizer.step()

    return step, optimizer.synchronize


def _torch_1f1b(num_microbatches: int, x: Tensor, y: Tensor) -> Way:
    layers = _layers_of_stages(NUM_RANKS)
    (stage,) = stages_of(layers, linear(NUM_RANKS).stage_to_rank)
    schedule = Schedule1F1B(stage, num_microbatches, loss_fn=loss)
    return _torch_way(schedule, [stage], x, y)


def _torch_zbv(num_microbatches: int, x: Tensor, y: Tensor) -> Way:
    layers = _layers_of_stages(2 * NUM_RANKS)
    stages = stages_of(layers, v_shape(NUM_RANKS).stage_to_rank)
    schedule = ScheduleZBVZeroBubble(stages, num_microbatches, loss_fn=loss)
    return _torch_way(schedule, stages, x, y)


def _layers_of_stages(num_stages: int) -> list[list[nn.Module]]:
    torch.manual_seed(0)
    layers = [
        layer() if not isinstance(layer, nn.Module) else layer for layer in build_layers(CONFIG)
    ]
    return [[layers[i] for i in numbers] for numbers in split_layers(len(layers), num_stages)]


def _torch_way(schedule: object, stages: list, x: Tensor, y: Tensor) -> Way:
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    run = step_of(schedule, stages, x, y)

    def step() -> None:
        run()
        norms = torch._foreach_norm([p.grad for p in parameters])
        square = torch.stack(norms).square().sum()
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, MAX_GRAD_NORM, square.sqrt())
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: None


def _window(step: Callable[[], object], end: Callable[[], object]) -> list[float]:
    """Time one step of a window of several; the window ends when all ranks have ended it."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(NUM_STEPS):
        step()
    end()
    dist.barrier()
    return [(time.perf_counter() - begin) / NUM_STEPS]


def _lines(seconds: dict[str, Rounds]) -> Iterator[tuple[str, str]]:
    for name, rounds in seconds.items():
        if name != BASE:
            yield f"{name} / {BASE}", spread(rounds[:, 0] / seconds[BASE][:, 0]).text(3)
    ratio = seconds["zb-h2 post"][:, 0] / seconds["1f1b sync"][:, 0]
    yield "zb-h2 post / 1f1b sync", spread(ratio).text(3)
    yield BASE, spread(seconds[BASE][:, 0] * 1e3).text(0, " ms")


if __name__ == "__main__":
    main()
