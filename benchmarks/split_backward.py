"""What does it cost to split the backward of a transformer block into B and W?"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.timing import Rounds, alternate, print_table, spread, time_phases
from zerobubble.autograd import WeightQueue, deferring
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import Block

CONFIG = ModelConfig(layers=12, dim=512, heads=8, sequence=128)
NUM_SEQUENCES = 4
NUM_ROUNDS = 40


def plain_phases(module: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], list[float]]:
    """Return a call that times the forward and the backward of a module."""
    y = torch.empty(0)

    def forward() -> None:
        nonlocal y
        y = module(x)

    return lambda: time_phases(forward, lambda: y.backward(dy))


def split_phases(module: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], list[float]]:
    """Return a call that times F, B and W of a module."""
    queue, y = WeightQueue(), torch.empty(0)

    def forward() -> None:
        nonlocal y
        with deferring(queue):
            y = module(x)

    def backward_input() -> None:
        with deferring(queue):
            y.backward(dy)

    return lambda: time_phases(forward, backward_input, queue.run)


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = Block(CONFIG)
    x = torch.randn(NUM_SEQUENCES, CONFIG.sequence, CONFIG.dim, requires_grad=True)
    dy = torch.randn(x.shape)
    ways = {"plain": plain_phases(block, x, dy), "split": split_phases(block, x, dy)}
    print_table(
        f"split backward: one block, dim {CONFIG.dim}, {NUM_SEQUENCES} sequences of "
        f"{CONFIG.sequence}, 1 thread, {NUM_ROUNDS} alternating rounds, median (quartiles)",
        _lines(**alternate(ways, NUM_ROUNDS)),
    )


def _lines(plain: Rounds, split: Rounds) -> Iterator[tuple[str, str]]:
    f, b, w = split.T
    forward, backward = plain.T
    yield "F + B + W / plain forward + backward", spread(split.sum(1) / plain.sum(1)).text(3)
    yield "B + W / plain backward", spread((b + w) / backward).text(3)
    yield "F / plain forward", spread(f / forward).text(3)
    yield "B / F", spread(b / f).text(2)
    yield "W / F", spread(w / f).text(2)
    yield "plain forward + backward", spread(plain.sum(1) * 1e3).text(1, " ms")


if __name__ == "__main__":
    main()
