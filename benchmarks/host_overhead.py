"""How much host time do the executor and the split backward take when nothing is computed?

Stages add a parameter of one element to a tensor of one element, so that every op has a graph of
one node and every boundary a gradient; what is left is the runtime, the engine of autograd, and
between ranks the latency of gloo. The cost of an op is the slope between two numbers of
microbatches, divided by the ops a microbatch takes on a rank; the rest of a step (splitting the
batch, announcing it, sharing the loss) is the intercept.

A rank's own time is the CPU time of its main thread, which does not count waiting for the other.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.split_backward import plain_phases, split_phases
from benchmarks.timing import Rounds, alternate, print_table, spread
from zerobubble import Pipeline, build

SCHEDULES = ("1f1b", "zb-h1")
FEW, MANY = 8, 72
NUM_OPS = {"1f1b": 2, "zb-h1": 3}  # of a microbatch on a rank
NUM_ROUNDS = 60
NUM_LINEARS = 20


class Empty(nn.Module):
    """The identity, but for a parameter of value zero that makes it part of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x + 0."""
        return x + self.zero


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    for num_ranks, measured in ((1, measure_steps()), (2, on_ranks(measure_steps, 2)[0])):
        where = "no transport" if num_ranks == 1 else "gloo, 2 processes"
        print_table(
            f"executor: empty stages on {num_ranks} rank{'s'[: num_ranks - 1]} ({where}), "
            f"{NUM_ROUNDS} alternating rounds, median (quartiles)",
            _step_lines(measured),
        )
    print_table(
        f"split linear: {NUM_LINEARS} linears of 8 x 8 in a row, 2 rows of input, 1 thread",
        _linear_lines(**measure_linears()),
    )


def measure_steps() -> dict[str, Rounds]:
    """Time steps of empty stages: wall time, and CPU time of this thread."""
    ways = {f"{name} {m}": _step(name, m) for name in SCHEDULES for m in (FEW, MANY)}
    return alternate(ways, NUM_ROUNDS, num_warm_up=5)


def _step(name: str, num_microbatches: int) -> Callable[[], list[float]]:
    num_ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    pipe = Pipeline(
        [Empty] * num_ranks, schedule, lambda x, target: (x * target).sum(), timeout=TIMEOUT_S
    )
    batch = torch.ones(num_microbatches, 1)

    def step() -> list[float]:
        if num_ranks > 1:
            torch.distributed.barrier()
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        pipe.step(batch, batch)
        return [time.perf_counter() - begin, time.thread_time() - begin_cpu]

    return step


def _step_lines(seconds: dict[str, Rounds]) -> Iterator[tuple[str, str]]:
    for name in SCHEDULES:
        few, many = (seconds[f"{name} {m}"] * 1e6 for m in (FEW, MANY))
        of_microbatch = (many - few) / (MANY - FEW)
        wall, own = (of_microbatch / NUM_OPS[name]).T
        fixed = (few - FEW * of_microbatch)[:, 0]
        yield f"{name}: an op ({_kinds(name)}), wall time", spread(wall).text(1, " us")
        yield f"{name}: an op, the rank's own time", spread(own).text(1, " us")
        yield f"{name}: the rest of a step, wall time", spread(fixed).text(0, " us")


def _kinds(name: str) -> str:
    return "mean of F, B, W" if NUM_OPS[name] == 3 else "mean of F, BW"


def measure_linears() -> dict[str, Rounds]:
    """Time a row of tiny linears with a plain and with a split backward."""
    linears = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(NUM_LINEARS)))
    x, dy = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8)
    ways = {"plain": plain_phases(linears, x, dy), "split": split_phases(linears, x, dy)}
    return alternate(ways, 10 * NUM_ROUNDS, num_warm_up=20)


def _linear_lines(plain: Rounds, split: Rounds) -> Iterator[tuple[str, str]]:
    extra = (split.sum(1) - plain.sum(1)) / NUM_LINEARS * 1e6
    yield "F + B + W / plain forward + backward", spread(split.sum(1) / plain.sum(1)).text(2)
    yield "split - plain, of a linear", spread(extra).text(1, " us")
    for kind, of_all in zip("FBW", split.T / NUM_LINEARS * 1e6, strict=True):
        yield f"{kind} of a linear", spread(of_all).text(1, " us")
    yield (
        "plain forward + backward of a linear",
        spread(plain.sum(1) / NUM_LINEARS * 1e6).text(1, " us"),
    )


if __name__ == "__main__":
    main()
