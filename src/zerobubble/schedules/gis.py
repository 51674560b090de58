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
    X
    """
    return in_groups(rank, num_ranks, num_microbatches, num_ranks, v, delay=rank)
