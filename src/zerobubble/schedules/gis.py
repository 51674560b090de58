"""GIS: interleaved with the backward split, in the memory of 1F1B."""

from collections.abc import Iterator

from zerobubble.ir import Op, looped
from zerobubble.schedules.grouped_interleaved import in_groups
from zerobubble.schedules.registry import schedule


@schedule("gis", placement=looped, paper="arXiv 2503.01328, section 4")
def gis(rank: int, *, num_ranks: int, num_microbatches: int, v: int = 2) -> Iterator[Op]:
    """Send groups of p microbatches through v stages: memory p, bubble (p-1)(F+B-W)/v.

    ``grouped-interleaved`` with its largest groups: rank i starts with p(v-1) + p - i forwards. The
    bubble holds for whole groups.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("gis", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F0|F1|F2|F3|f0|f1|f2|f3|........|b0|w0|b1|w1|b2|w2|b3|w3|B0|W0|B1|W1|B2|W2|B3|W3|
    rank 1    |F0|F1|F2|F3|f0|f1|f2|.....|b0|f3|b1|w0|b2|w1|b3|w2|B0|w3|B1|W0|B2|W1|B3|W2|W3|
    rank 2       |F0|F1|F2|F3|f0|f1|..|b0|f2|b1|f3|b2|w0|b3|w1|B0|w2|B1|w3|B2|W0|B3|W1|W2|W3|
    rank 3          |F0|F1|F2|F3|f0|b0|f1|b1|f2|b2|f3|b3|w0|B0|w1|B1|w2|B2|w3|B3|W0|W1|W2|W3|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    return in_groups(rank, num_ranks, num_microbatches, num_ranks, v, delay=rank)
