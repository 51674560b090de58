"""How much host time does the executor take when nothing is computed?

Stages add a parameter of one element to a tensor of one element, so that every op has a graph of
one node and every boundary a gradient; what is left is the runtime, the engine of autograd, and
between ranks the latency of gloo. On one rank a bare loop, the model's forward and
``loss.backward()`` for every microbatch, shows what of it is not the runtime's.

The cost of an op is the slope between two numbers of microbatches, divided by the ops that a
microbatch takes on a rank; the rest of a step (splitting the batch, announcing it, sharing the
loss) is the intercept.
A rank's own time is the CPU time of its main thread, which does not count waiting for the other.

Whole steps of 8 microbatches on two ranks are compared with PyTorch's runtime, which reads the very
same schedule from a CSV file and runs the very same stages, and with 1F1B written out by hand, in
which nothing is left but modules, autograd and gloo: no runtime on these can take less.
"""

import time
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.processes import TIMEOUT_S, on_ranks
from benchmarks.timing import Rounds, alternate, print_table, spread
from benchmarks.torch_pipelining import runtime_of, stages_of, step_of
from zerobubble import Pipeline, build

BARE = "bare loop"
KINDS = {BARE: "F, BW", "1f1b": "F, BW", "zb-h1": "F, B, W"}  # of a microbatch on a rank
SPLITS = ("1f1b", "zb-h1")
FEW, MANY = 8, 72
NUM_ROUNDS = 60


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
    of_ranks = on_ranks(measure_beside_torch, 2)
    print_table(
        f"executor: empty stages on 2 ranks, {FEW} microbatches, whole steps beside "
        f"torch.distributed.pipelining, {NUM_ROUNDS} alternating rounds, median (quartiles)",
        _lines_beside_torch(of_ranks),
    )


def measure_steps() -> dict[str, Rounds]:
    """Time steps of empty stages: wall time, and CPU time of this thread."""
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    ways = {}
    for name, m in product(KINDS, (FEW, MANY)):
        if name != BARE:
            ways[f"{name} {m}"] = _timed(_pipeline_step(name, num_ranks, m), num_ranks)
        elif num_ranks == 1:
            ways[f"{name} {m}"] = _timed(_bare_step(m), num_ranks)
    return alternate(ways, NUM_ROUNDS, num_warm_up=5)


def measure_beside_torch() -> dict[str, Rounds]:
    """Time steps of empty stages in our runtime and in PyTorch's."""
    ways, batch = {}, torch.ones(FEW, 1)
    for name in SPLITS:
        schedule = build(name, num_ranks=2, num_microbatches=FEW)
        stages = stages_of([[Empty()], [Empty()]], schedule.placement.stage_to_rank)
        theirs = step_of(runtime_of(schedule, stages, _loss), stages, batch, batch)
        ways[name] = _timed(_pipeline_step(name, 2, FEW), 2)
        ways[f"torch {name}"] = _timed(theirs, 2)
    ways[BARE] = _timed(_bare_step_of_two(FEW), 2)
    return alternate(ways, NUM_ROUNDS, num_warm_up=5)


def _loss(x: Tensor, target: Tensor) -> Tensor:
    return (x * target).sum()


def _pipeline_step(name: str, num_ranks: int, num_microbatches: int) -> Callable[[], object]:
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    pipe = Pipeline([Empty] * num_ranks, schedule, _loss, timeout=TIMEOUT_S)
    batch = torch.ones(num_microbatches, 1)
    return lambda: pipe.step(batch, batch)


def _bare_step(num_microbatches: int) -> Callable[[], object]:
    model, batch = Empty(), torch.ones(num_microbatches, 1)

    def step() -> Tensor:
        total = torch.zeros(())
        for x in batch.chunk(num_microbatches):
            loss = _loss(model(x), x) / num_microbatches
            total += loss.detach()
            loss.backward()
        return total

    return step


def _bare_step_of_two(num_microbatches: int) -> Callable[[], object]:
    """Give a step of 1F1B on this rank of two, written out."""
    rank, model, batch = dist.get_rank(), Empty(), torch.ones(num_microbatches, 1)
    group, microbatches = dist.new_group(backend="gloo"), batch.chunk(num_microbatches)

    def receive(tag: int) -> tuple[Tensor, dist.Work]:
        buffer = torch.empty(1, 1)
        return buffer, group.recv([buffer], 1 - rank, tag)

    def first() -> None:
        outputs, sent, gradients = [], [], []
        for i, x in enumerate(microbatches):
            outputs.append(model(x))
            sent.append(group.send([outputs[-1].detach()], 1, i))
            gradients.append(receive(i))
            if i > 0:
                backward(outputs[i - 1], gradients[i - 1])
        backward(outputs[-1], gradients[-1])
        for work in sent:
            work.wait()

    def backward(output: Tensor, incoming: tuple[Tensor, dist.Work]) -> None:
        incoming[1].wait()
        output.backward(incoming[0])

    def last() -> None:
        sent, incoming = [], receive(0)
        for i, target in enumerate(microbatches):
            leaf, work = incoming
            if i + 1 < num_microbatches:
                incoming = receive(i + 1)
            work.wait()
            loss = _loss(model(leaf.requires_grad_()), target) / num_microbatches
            loss.backward()
            sent.append(group.send([leaf.grad], 0, i))
        for work in sent:
            work.wait()

    return last if rank else first


def _timed(step: Callable[[], object], num_ranks: int) -> Callable[[], list[float]]:
    def timed() -> list[float]:
        if num_ranks > 1:
            dist.barrier()
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        step()
        return [time.perf_counter() - begin, time.thread_time() - begin_cpu]

    return timed


def _lines_beside_torch(of_ranks: list[dict[str, Rounds]]) -> Iterator[tuple[str, str]]:
    for name in SPLITS:
        num_ops = FEW * len(KINDS[name].split(", "))
        for index, what in enumerate(("wall time", "own time")):
            # Of both ranks together: the last one also computes the loss.
            ours, theirs = (
                sum(of_rank[way][:, index] for of_rank in of_ranks) / (2 * num_ops) * 1e6
                for way in (name, f"torch {name}")
            )
            yield f"{name}: an op, {what}", spread(ours).text(1, " us")
            yield f"{name}: an op of torch, {what}", spread(theirs).text(1, " us")
            yield f"{name}: ours / torch, {what}", spread(ours / theirs).text(3)
            if name == "1f1b":
                bare = sum(r[BARE][:, index] for r in of_ranks) / (2 * num_ops) * 1e6
                yield f"{name}: by hand / torch, {what}", spread(bare / theirs).text(3)


def _step_lines(seconds: dict[str, Rounds]) -> Iterator[tuple[str, str]]:
    names = [name for name in KINDS if f"{name} {FEW}" in seconds]
    few, many = ({name: seconds[f"{name} {m}"] * 1e6 for name in names} for m in (FEW, MANY))
    of_microbatch = {name: (many[name] - few[name]) / (MANY - FEW) for name in names}
    for name in names:
        wall, own = (of_microbatch[name] / len(KINDS[name].split(", "))).T
        yield f"{name}: an op (mean of {KINDS[name]}), wall time", spread(wall).text(1, " us")
        yield f"{name}: an op, the rank's own time", spread(own).text(1, " us")
    for name in names:
        if name != BARE:
            rest = few[name] - FEW * of_microbatch[name]
            yield f"{name}: the rest of a step, own time", spread(rest[:, 1]).text(0, " us")
        if name != BARE and BARE in names:
            ratio = of_microbatch[name][:, 1] / of_microbatch[BARE][:, 1]
            yield f"{name} / {BARE}, own time of a microbatch", spread(ratio).text(2)


if __name__ == "__main__":
    main()
