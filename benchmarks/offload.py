"""What does offload cost, and how much memory does it save?

Every rank holds ``v`` stages, each of them one block that saves more than the smallest tensors that
move. The peak of resident activations is counted on every rank, and simulated with the sizes that
the stages have in a run of one microbatch, in which O takes everything away and L brings it back.
"""

import time
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.timing import Rounds, Spread, alternate, spread
from zerobubble import Costs, Pipeline, Schedule, build, simulate
from zerobubble.ir import B, F, Kind, L, O, Op, W, looped

SCHEDULES = ("interleaved", "gis", "gis-h", "po-h", "po-f")
BASE_OF_MEMORY, BASE_OF_TIME = "interleaved", "gis-h"
DIM, NUM_TOKENS = 64, 64
_LINE = "{:>2}  {:12} {:>8} {:>9} {:>7} {:>12} {:>7}  {}"

Found = tuple[dict[str, list[int]], list[tuple[float, float, float]], dict[str, Rounds]]


def main(ranks: tuple[int, ...] = (2, 4, 8), v: int = 4, rounds: int = 9) -> None:
    """Print a row for each schedule and number of ranks; sizes are of the worst rank, in KiB."""
    print(f"v={v}, m=3p, blocks of dim {DIM}, {NUM_TOKENS} tokens, {rounds} alternating rounds")
    ratios = f"/ {BASE_OF_MEMORY}", f"step / {BASE_OF_TIME}"
    columns = ("p", "schedule", "counted", "simulated", "ratio", ratios[0], "stages", ratios[1])
    print(_LINE.format(*columns))
    for num_ranks in ranks:
        found = on_ranks(partial(measure, num_ranks, v, rounds), num_ranks)
        _print_rows(num_ranks, v, found)


def measure(num_ranks: int, v: int, num_rounds: int) -> Found:
    """Give peaks and seconds of every schedule on this rank, and the sizes of its stages."""
    pipes = {name: _pipeline(_schedule(name, num_ranks, v)) for name in SCHEDULES}
    peaks = {name: max(_curve(pipe)) for name, pipe in pipes.items()}
    sizes = _sizes(_pipeline(_alone(num_ranks, v)))
    seconds = alternate({name: partial(_time_step, p) for name, p in pipes.items()}, num_rounds)
    return {name: [peak] for name, peak in peaks.items()}, sizes, seconds


def _schedule(name: str, num_ranks: int, v: int) -> Schedule:
    return build(f"{name}:v={v}", num_ranks, 3 * num_ranks)


def _alone(num_ranks: int, v: int) -> Schedule:
    """Offload all that one microbatch holds."""
    placement = looped(num_ranks, v)
    orders: list[list[Op]] = []
    for rank in range(num_ranks):
        stages = placement.stages_of(rank)
        down = [kind(s, 0) for s in stages for kind in (F, O)]
        orders.append(down + [kind(s, 0) for s in reversed(stages) for kind in (L, B, W)])
    return Schedule.from_ops("alone", placement, 1, orders)


class Block(nn.Module):
    """Norm, two layers and a residual, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (samples, tokens, DIM)."""
        return x + self.layers(x)


def _pipeline(schedule: Schedule) -> Pipeline:
    layers = [Block] * schedule.num_stages
    return Pipeline(layers, schedule, nn.functional.mse_loss, timeout=TIMEOUT_S)


def _step(pipe: Pipeline) -> None:
    batch = torch.ones(pipe.schedule.num_microbatches, NUM_TOKENS, DIM)
    pipe.step(batch, batch)


def _curve(pipe: Pipeline) -> list[int]:
    """Count the resident bytes after every op of a step."""
    pipe.ledger.is_on = True
    _step(pipe)
    pipe.ledger.is_on = False
    return pipe.ledger.activation_bytes


def _sizes(pipe: Pipeline) -> list[tuple[float, float, float]]:
    """Give what F, B and O of every stage of this rank change, in the order of the stages."""
    changes = np.diff(_curve(pipe), prepend=0)
    ops = zip(pipe.schedule.ops(pipe.rank), changes, strict=True)
    of_op = {(op.kind, op.stage): float(change) for op, change in ops}
    return [(of_op[Kind.F, s], of_op[Kind.B, s], of_op[Kind.O, s]) for s in pipe.stages]


def _time_step(pipe: Pipeline) -> list[float]:
    dist.barrier()
    begin = time.perf_counter()
    _step(pipe)
    return [time.perf_counter() - begin]


def _costs(found: list[Found]) -> Costs:
    """Order the sizes by stage: stage s of a looped placement is on rank s mod p."""
    held, b, o = np.array([sizes for _, sizes, _ in found]).transpose(2, 1, 0).reshape(3, -1)
    times = np.ones(len(held))
    return Costs(times, times, times, 0 * times, held, held + b, activation_offloaded=-o)


def _print_rows(num_ranks: int, v: int, found: list[Found]) -> None:
    costs = _costs(found)
    counted = {name: max(peaks[name][0] for peaks, _, _ in found) for name in SCHEDULES}
    for name in SCHEDULES:
        simulated = simulate(_schedule(name, num_ranks, v), costs).peak_memory
        seconds: Spread = spread(found[0][2][name] / found[0][2][BASE_OF_TIME])
        print(
            _LINE.format(
                num_ranks,
                name,
                f"{counted[name] / 1024:.0f}",
                f"{simulated / 1024:.0f}",
                f"{counted[name] / simulated:.3f}",
                f"{counted[name] / counted[BASE_OF_MEMORY]:.3f}",
                f"{counted[name] / costs.activation.max():.2f}",
                seconds.text(2),
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
