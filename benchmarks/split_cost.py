"""What does it cost to split a backward into B and W?

Every ratio is the median over rounds in which all ways run in turn. Phases are timed by the CPU
time of this thread, which does all the work, so that other processes on the machine disturb less.
PyTorch's own ``stage_backward_input`` and ``stage_backward_weight`` run beside the split.
"""

import shutil
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from benchmarks.split_models import CONFIG, NUM_BLOCKS, Stack, build
from benchmarks.timing import Rounds, alternate, print_table, spread, time_phases
from zerobubble.autograd import WeightQueue, deferring, native
from zerobubble.train.model import Block

MODELS = ("gpt", "llama", "gpt checkpointed", "llama checkpointed", "moe", "conv")
NUM_LINEARS = 20

Phases = Callable[[], list[float]]


def _timed(*phases: Callable[[], object]) -> list[float]:
    return time_phases(*phases, clock=time.thread_time)


def plain_phases(module: nn.Module, x: Tensor, dy: Tensor) -> Phases:
    """Return a call that times the forward and the backward of a module."""
    y = torch.empty(0)

    def forward() -> None:
        nonlocal y
        y = module(x)

    return lambda: _timed(forward, lambda: y.backward(dy))


def split_phases(module: nn.Module, x: Tensor, dy: Tensor) -> Phases:
    """Return a call that times F, B and W of a module."""
    queue, y = WeightQueue(), torch.empty(0)

    def forward() -> None:
        nonlocal y
        with deferring(queue):
            y = module(x)

    def backward_input() -> None:
        with deferring(queue):
            y.backward(dy)

    return lambda: _timed(forward, backward_input, queue.run)


def torch_phases(module: nn.Module, x: Tensor, dy: Tensor) -> Phases:
    """Return a call that times F, B and W as ``torch.distributed.pipelining`` does them."""
    y, groups = torch.empty(0), []

    def forward() -> None:
        nonlocal y
        y = module(x)

    def backward_input() -> None:
        nonlocal groups
        _, groups = stage_backward_input([y], [dy], [x], module.parameters())

    def backward_weight() -> None:
        stage_backward_weight(module.parameters(), groups)

    return lambda: _timed(forward, backward_input, backward_weight)


def main(num_rounds: int = 15, skip_compiled: bool = False) -> None:
    """Measure and print.

    Args:
        num_rounds: alternating rounds of every model.
        skip_compiled: leave out the compiled model, which takes a compiler and a minute.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    node = "C++" if native.load() else "Python"
    size = f"dim {CONFIG.dim}, {NUM_BLOCKS} blocks, 1 thread, {num_rounds} alternating rounds"
    for name in MODELS:
        print_table(f"{name}: {size}, node in {node}", _model_lines(name, num_rounds))
    print_table(
        f"one of {NUM_LINEARS} linears of 8 x 8 in a row, 2 x 4 rows of input",
        _linear_lines(20 * num_rounds),
    )
    if skip_compiled or shutil.which("g++") is None:
        print("compiled: left out")
    else:
        print_table(f"compiled by inductor: gpt, dim {CONFIG.dim}, 2 blocks", _compiled(num_rounds))


def _model_lines(name: str, num_rounds: int) -> Iterator[tuple[str, str]]:
    module, draw = build(name)
    x, dy = draw().requires_grad_(), torch.randn_like(module(draw()))
    ways = {"plain": plain_phases(module, x, dy), "split": split_phases(module, x, dy)}
    try:
        own = torch_phases(module, x, dy)
        own()
        ways["torch"] = own
    except Exception as error:
        yield "PyTorch's stage_backward_input", f"fails: {type(error).__name__}"
    rounds = alternate(ways, num_rounds)
    yield from _split_lines(rounds["plain"], rounds["split"])
    if "torch" in rounds:
        ratio = rounds["torch"].sum(1) / rounds["plain"].sum(1)
        yield "PyTorch's F + B + W / plain", spread(ratio).text(3)
    if isinstance(module, Stack) and module.recomputes:
        module.num_runs = [0] * NUM_BLOCKS
        ways["split"]()
        yield "runs of each block in F + B + W", str(module.num_runs)


def _split_lines(plain: Rounds, split: Rounds) -> Iterator[tuple[str, str]]:
    f, b, w = split.T
    yield "F + B + W / plain forward + backward", spread(split.sum(1) / plain.sum(1)).text(3)
    yield "B / F", spread(b / f).text(2)
    yield "W / F", spread(w / f).text(2)
    yield "W / (B + W)", spread(w / (b + w)).text(2)
    yield "plain forward, backward", ", ".join(f"{ms:.1f} ms" for ms in np.median(plain, 0) * 1e3)
    yield "F, B, W", ", ".join(f"{ms:.1f} ms" for ms in np.median(split, 0) * 1e3)


def _linear_lines(num_rounds: int) -> Iterator[tuple[str, str]]:
    linears = nn.Sequential(*(nn.Linear(8, 8) for _ in range(NUM_LINEARS)))
    x, dy = torch.randn(2, 4, 8, requires_grad=True), torch.randn(2, 4, 8)
    split = split_phases(linears, x, dy)

    def with_node(load: Callable[[], object]) -> Phases:
        def phases() -> list[float]:
            load()
            return split()

        return phases

    ways = {"plain": plain_phases(linears, x, dy), "Python": with_node(native.unload)}
    if native.load():
        ways["C++"] = with_node(native.load)
    rounds = alternate(ways, num_rounds, num_warm_up=20)
    native.load()
    for name, seconds in rounds.items():
        kinds = "forward + backward" if name == "plain" else "F + B + W"
        us = seconds / NUM_LINEARS * 1e6
        parts = " + ".join(f"{part:.1f}" for part in np.median(us, 0))
        yield f"{name}: {kinds}", f"{spread(us.sum(1)).text(1, ' us')} = {parts}"


def _compiled(num_rounds: int) -> Iterator[tuple[str, str]]:
    module = nn.Sequential(Block(CONFIG), Block(CONFIG))
    call, (_, draw) = torch.compile(module, fullgraph=True), build("gpt")
    x, dy = draw().requires_grad_(), draw()
    ways = {"plain": plain_phases(call, x, dy), "split": split_phases(call, x, dy)}
    yield "largest relative difference of a gradient", f"{_difference(module, x, ways):.1e}"
    yield from _split_lines(**alternate(ways, num_rounds))


def _difference(module: nn.Module, x: Tensor, ways: dict[str, Phases]) -> float:
    found = []
    for phases in ways.values():
        module.zero_grad()
        x.grad = None
        phases()
        found.append([t.grad.clone() for t in (x, *module.parameters())])
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(*found, strict=True))


if __name__ == "__main__":
    main()
