"""1F1B: each rank alternates one forward and one backward after a short warm-up."""

from collections.abc import Iterator

from zerobubble.ir import BW, F, Op, linear
from zerobubble.schedules.registry import schedule


@schedule("1f1b", placement=linear, paper="arXiv 2104.04473, section 2.2")
def one_f_one_b(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Alternate forwards and backwards after p - rank forwards: bubble (p-1)(F+B+W), memory p.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("1f1b", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(4))))
    rank 0 |F0|F1|F2|F3|.................|BW0  |..|BW1  |..|BW2  |..|BW3  |
    rank 1    |F0|F1|F2|...........|BW0  |F3|BW1  |..|BW2  |..|BW3  |
    rank 2       |F0|F1|.....|BW0  |F2|BW1  |F3|BW2  |..|BW3  |
    rank 3          |F0|BW0  |F1|BW1  |F2|BW2  |F3|BW3  |
    F forward, BW both gradients, . idle
    """
    warm_up = min(num_ranks - rank, num_microbatches)
    for i in range(warm_up):
        yield F(rank, i)
    for i in range(num_microbatches):
        yield BW(rank, i)
        if warm_up + i < num_microbatches:
            yield F(rank, warm_up + i)
