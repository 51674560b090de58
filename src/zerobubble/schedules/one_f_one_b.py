"""1F1B: each rank alternates one forward and one backward after a short warm-up."""

from collections.abc import Iterator

from zerobubble.ir import BW, F, Op, linear
from zerobubble.schedules.registry import schedule


@schedule("1f1b", placement=linear, paper="arXiv 2104.04473, section 2.2")
def one_f_one_b(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Alternate forwards and backwards after p - rank forwards: bubble (p-1)(F+B+W), memory p."""
    warm_up = min(num_ranks - rank, num_microbatches)
    for i in range(warm_up):
        yield F(rank, i)
    for i in range(num_microbatches):
        yield BW(rank, i)
        if warm_up + i < num_microbatches:
            yield F(rank, warm_up + i)
