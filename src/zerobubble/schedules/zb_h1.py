"""ZB-H1: 1F1B with the weight gradients moved into the waits, in the memory of 1F1B."""

from collections.abc import Iterator

from zerobubble.ir import B, F, Op, W, linear
from zerobubble.schedules.registry import schedule


@schedule("zb-h1", placement=linear, paper="arXiv 2401.10241, section 2.1")
def zb_h1(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Delay W by r microbatches on rank r of 1F1B: bubble (p-1)(F+B-W), memory p.

    Rank r warms up with p - r forwards and keeps r weight gradients back, so that every rank has
    p microbatches in flight.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("zb-h1", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(4))))
    rank 0 |F0|F1|F2|F3|........|B0|W0|B1|W1|B2|W2|B3|W3|
    rank 1    |F0|F1|F2|.....|B0|F3|B1|W0|B2|W1|B3|W2|W3|
    rank 2       |F0|F1|..|B0|F2|B1|F3|B2|W0|B3|W1|W2|W3|
    rank 3          |F0|B0|F1|B1|F2|B2|F3|B3|W0|W1|W2|W3|
    F forward, B input gradient, W weight gradient, . idle
    """
    return delayed_weights(rank, num_microbatches, warm_up=num_ranks - rank, delay=rank)


def delayed_weights(stage: int, num_microbatches: int, *, warm_up: int, delay: int) -> Iterator[Op]:
    """Alternate F and B after ``warm_up`` forwards, each W ``delay`` microbatches behind its B."""
    warm_up = min(warm_up, num_microbatches)
    for i in range(warm_up):
        yield F(stage, i)
    for i in range(num_microbatches):
        yield B(stage, i)
        if i >= delay:
            yield W(stage, i - delay)
        if warm_up + i < num_microbatches:
            yield F(stage, warm_up + i)
    for i in range(max(0, num_microbatches - delay), num_microbatches):
        yield W(stage, i)
