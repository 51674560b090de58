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
    X
    """
    return in_groups(rank, num_ranks, num_microbatches, (num_ranks + 1) // 2, v, delay=rank)
