"""GIS-H: interleaved in smaller groups, in little more than half the memory of 1F1B."""

from collections.abc import Iterator

from zerobubble.ir import Op, looped
from zerobubble.schedules.grouped_interleaved import in_groups
from zerobubble.schedules.registry import schedule


@schedule("gis-h", placement=looped, paper="arXiv 2503.01328, section 4")
def gis_h(rank: int, *, num_ranks: int, num_microbatches: int, v: int = 2) -> Iterator[Op]:
    """Send groups of half as many microbatches as ranks: memory p(v+1)/(2v) for even p.

    ``grouped-interleaved`` with its smallest groups, g = ceil(p/2): memory (g(v-1)+p)/v for any p.
    The rank waits for every group to come round in the warm-up.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("gis-h", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F0|F1|.....|f0|f1|F2|F3|........|b0|w0|f2|b1|w1|f3|B0|W0|B1|W1|b2|w2|..|b3|w3|B2|W2|B3|W3|
    rank 1    |F0|F1|.....|f0|f1|F2|.....|b0|F3|b1|w0|f2|B0|w1|f3|B1|W0|b2|W1|..|b3|w2|B2|w3|B3|W2|W3|
    rank 2       |F0|F1|.....|f0|f1|..|b0|F2|b1|F3|B0|w0|f2|B1|w1|f3|b2|W0|..|b3|W1|B2|w2|B3|w3|W2|W3|
    rank 3          |F0|F1|.....|f0|b0|f1|b1|F2|B0|F3|..|B1|w0|f2|b2|w1|f3|b3|W0|B2|W1|B3|w2|w3|W2|W3|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """  # noqa: E501
    return in_groups(rank, num_ranks, num_microbatches, (num_ranks + 1) // 2, v, delay=rank)
