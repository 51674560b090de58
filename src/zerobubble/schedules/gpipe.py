"""GPipe: all forwards, then all backwards."""

from collections.abc import Iterator

from zerobubble.ir import BW, F, Op, linear
from zerobubble.schedules.registry import schedule


@schedule("gpipe", placement=linear, paper="arXiv 1811.06965")
def gpipe(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Run every forward, then every backward: bubble (p-1)(F+B+W), memory m.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("gpipe", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(4))))
    rank 0 |F0|F1|F2|F3|..........................|BW0  |BW1  |BW2  |BW3  |
    rank 1    |F0|F1|F2|F3|.................|BW0  |BW1  |BW2  |BW3  |
    rank 2       |F0|F1|F2|F3|........|BW0  |BW1  |BW2  |BW3  |
    rank 3          |F0|F1|F2|F3|BW0  |BW1  |BW2  |BW3  |
    F forward, BW both gradients, . idle
    """
    for i in range(num_microbatches):
        yield F(rank, i)
    for i in range(num_microbatches):
        yield BW(rank, i)
