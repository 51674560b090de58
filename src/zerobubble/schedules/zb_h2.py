"""ZB-H2: a longer warm-up takes away the rest of the bubble, for twice the memory."""

from collections.abc import Iterator

from zerobubble.ir import Op, linear
from zerobubble.schedules.registry import schedule
from zerobubble.schedules.zb_h1 import delayed_weights


@schedule("zb-h2", placement=linear, paper="arXiv 2401.10241, section 2.2")
def zb_h2(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Warm up with 2(p - rank) - 1 forwards: bubble (p-1)(F+B-2W), memory 2p-1.

    Every rank has 2p - 1 microbatches in flight, and the timeline is a parallelogram.
    """
    warm_up = 2 * (num_ranks - rank) - 1
    return delayed_weights(rank, num_microbatches, warm_up=warm_up, delay=2 * rank)
