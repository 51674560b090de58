"""ZB-H2: a longer warm-up takes away the rest of the bubble, for twice the memory."""

from collections.abc import Iterator

from zerobubble.ir import Op, linear
from zerobubble.schedules.registry import schedule
from zerobubble.schedules.zb_h1 import delayed_weights


@schedule("zb-h2", placement=linear, paper="arXiv 2401.10241, section 2.2")
def zb_h2(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Warm up with 2(p - rank) - 1 forwards: bubble (p-1)(F+B-2W), memory 2p-1.

    Every rank has 2p - 1 microbatches in flight, and the timeline is a parallelogram.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("zb-h2", num_ranks=3, num_microbatches=8)
    >>> print(draw(simulate(schedule, Costs.uniform(3))))
    rank 0 |F0|F1|F2|F3|F4|B0|W0|F5|B1|W1|F6|B2|W2|F7|B3|W3|B4|W4|B5|W5|B6|W6|B7|W7|
    rank 1    |F0|F1|F2|B0|F3|B1|F4|B2|W0|F5|B3|W1|F6|B4|W2|F7|B5|W3|B6|W4|B7|W5|W6|W7|
    rank 2       |F0|B0|F1|B1|F2|B2|F3|B3|F4|B4|W0|F5|B5|W1|F6|B6|W2|F7|B7|W3|W4|W5|W6|W7|
    F forward, B input gradient, W weight gradient
    """
    warm_up = 2 * (num_ranks - rank) - 1
    return delayed_weights(rank, num_microbatches, warm_up=warm_up, delay=2 * rank)
