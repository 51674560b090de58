"""GPipe: all forwards, then all backwards."""

from collections.abc import Iterator

from zerobubble.ir import BW, F, Op, linear
from zerobubble.schedules.registry import schedule


@schedule("gpipe", placement=linear, paper="arXiv 1811.06965")
def gpipe(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Run every forward, then every backward: bubble (p-1)(F+B+W), memory m."""
    for i in range(num_microbatches):
        yield F(rank, i)
    for i in range(num_microbatches):
        yield BW(rank, i)
