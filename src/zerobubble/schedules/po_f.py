"""PO-F: all stages are offloaded, and the memory does not grow with the number of ranks."""

from zerobubble.copies import with_least_memory
from zerobubble.costs import Costs
from zerobubble.ir import Schedule, looped
from zerobubble.schedules.grouped_interleaved import in_groups
from zerobubble.schedules.registry import schedule


@schedule("po-f", placement=looped, paper="arXiv 2503.01328, section 3.3")
def po_f(*, num_ranks: int, num_microbatches: int, v: int = 2, costs: Costs) -> Schedule:
    """Offload all stages of GIS-H: memory of a few stages, at any number of ranks.

    Each W follows its B, and frees what the B has left. One stage is held where copies take no
    time, as by default, and three where each takes half of F, B and W. With slower ones more and
    more forwards of the warm-up wait for their copies: as many as there are ranks, if a copy takes
    as long as F, B and W.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> costs = Costs.uniform(8).with_bandwidth(0.5)
    >>> schedule = build("po-f", num_ranks=4, num_microbatches=4, costs=costs)
    >>> print(draw(simulate(schedule, costs), width=100).rpartition("\\n")[0])
    rank 0     |F|F|...|f|f|F|F|.....|b|w|.|f|b|w|f|B|W|B|W|.|b|w|.|b|w|B|W|B|W|
    rank 0 out   |O0 |O1 |o0 |o1 |O2 |O3 |   |o2 | |o3 |
    rank 0 in                    |l0 |   |l1 | |L0 |L1 | |l2 | |l3 |L2 |L3 |
    rank 1       |F|F|...|f|f|F|...|b|w|F|b|w|f|B|W|f|B|W|.|b|w|.|b|w|B|W|B|W|
    rank 1 out     |O0 |O1 | |o1 |O2 |   |O3 | |o2 | |o3 |
    rank 1 in                        |l1 | |L0 | |L1 | |l2 | |l3 |L2 |L3 |
    rank 2         |F|F|...|f|f|.|b|w|F|b|w|F|B|W|f|B|W|f|b|w|.|b|w|B|W|B|W|
    rank 2 out       |O0 |O1 |         |O2 | |O3 |
    rank 2 in                            |L0 | |L1 |         |L2 | |L3 |
    rank 3           |F|F|...|f|b|w|f|b|w|F|B|W|F|B|W|f|b|w|f|b|w|B|W|B|W|
    rank 3 out         |O0 |O1 |           |O2 | |O3 |
    rank 3 in                          |L0 | |L1 |           |L2 |L3 |
    """
    group = (num_ranks + 1) // 2
    orders = [
        in_groups(rank, num_ranks, num_microbatches, group, v, delay=0) for rank in range(num_ranks)
    ]
    plain = Schedule.from_ops("po-f", looped(num_ranks, v), num_microbatches, orders)
    return with_least_memory(plain, costs)
