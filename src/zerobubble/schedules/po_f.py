"""PO-F: all stages are offloaded, and the memory does not grow with the number of ranks."""

from zerobubble.copies import with_least_memory
from zerobubble.costs import Costs
from zerobubble.ir import Schedule, looped
from zerobubble.schedules.grouped_interleaved import in_groups
from zerobubble.schedules.registry import schedule


@schedule("po-f", placement=looped, paper="arXiv 2503.01328, section 3.3")
def po_f(*, num_ranks: int, num_microbatches: int, v: int = 2, costs: Costs) -> Schedule:
    """Offload all stages of GIS-H: memory of about four stages, at any number of ranks.

    Each W follows its B, and frees what the B has left. By default copies take no time, and one
    stage is held; with slower ones two to four are, which is what holds as long as no copy takes
    longer than the compute of its stage.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.copies import without_copies
    >>> from zerobubble.view.labels import label
    >>> from zerobubble.view.text import draw
    >>> schedule = build("po-f", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(without_copies(schedule), Costs.uniform(8)), width=100))
    rank 0 |F|F|...|f|f|F|F|.....|b|w|.|f|b|w|f|B|W|B|W|.|b|w|.|b|w|B|W|B|W|
    rank 1   |F|F|...|f|f|F|...|b|w|F|b|w|f|B|W|f|B|W|.|b|w|.|b|w|B|W|B|W|
    rank 2     |F|F|...|f|f|.|b|w|F|b|w|F|B|W|f|B|W|f|b|w|.|b|w|B|W|B|W|
    rank 3       |F|F|...|f|b|w|f|b|w|F|B|W|F|B|W|f|b|w|f|b|w|B|W|B|W|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    >>> print(*[label(op, op.stage // 4) for op in schedule.ops(0)][:24])
    F0 O0 F1 O1 f0 o0 f1 o1 F2 O2 F3 O3 l0 b0 w0 f2 o2 l1 b1 w1 f3 o3 L0 B0
    """
    group = (num_ranks + 1) // 2
    orders = [
        in_groups(rank, num_ranks, num_microbatches, group, v, delay=0) for rank in range(num_ranks)
    ]
    plain = Schedule.from_ops("po-f", looped(num_ranks, v), num_microbatches, orders)
    return with_least_memory(plain, costs)
