"""PO-F: all stages are offloaded, and the memory does not grow with the number of ranks."""

from zerobubble.copies import with_least_memory
from zerobubble.costs import Costs
from zerobubble.ir import Schedule, looped
from zerobubble.schedules.grouped_interleaved import in_groups
from zerobubble.schedules.registry import schedule


@schedule("po-f", placement=looped, paper="arXiv 2503.01328, section 3.3")
def po_f(*, num_ranks: int, num_microbatches: int, v: int = 2, costs: Costs) -> Schedule:
    """Offload all stages of GIS-H: memory of about four stages, at any number of ranks.

    Each W follows its B, and frees what the B has left. Four stages are held where the copies take
    as long as the compute; by default they take no time, and one is held.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("po-f", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    X
    """
    group = (num_ranks + 1) // 2
    orders = [
        in_groups(rank, num_ranks, num_microbatches, group, v, delay=0) for rank in range(num_ranks)
    ]
    plain = Schedule.from_ops("po-f", looped(num_ranks, v), num_microbatches, orders)
    return with_least_memory(plain, costs)
