"""PO-H: the longest-lived half of the stages is offloaded, a quarter of the memory is left."""

from itertools import accumulate
from math import gcd

import numpy as np

from zerobubble.copies import with_least_memory
from zerobubble.costs import Costs
from zerobubble.ir import Codes, Kind, Schedule, looped
from zerobubble.schedules.registry import schedule


@schedule("po-h", placement=looped, paper="arXiv 2503.01328, section 3.3")
def po_h(*, num_ranks: int, num_microbatches: int, v: int = 2, costs: Costs) -> Schedule:
    """Repeat GIS-H for each microbatch and offload ceil(v/2) stages: memory p(v+2)/(8v) and a bit.

    The stages of a rank live as much longer as they come earlier, so the first half of them holds
    three quarters. Microbatches follow each other one by one, not in groups: then all live
    equally long, and what stays is spread evenly over time. The memory is that of copies that take
    no time, as they do by default, and that of large p and v: one to three stages come on top. At
    p = 2, v = 2 it is 1 instead of 0.5; at p = 4, v = 2 it is 1.5 instead of 1; at p = 16, v = 8 it
    is 2.875 instead of 2.5.

    Unlike the bubble of interleaved, that of this schedule hardly falls with v: at p = 4, m = 32
    and equal times it is 4.5%, 4.5% and 4.4% for v = 2, 4 and 8, against 4.5%, 2.3% and 1.2%.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> costs = Costs.uniform(8).with_bandwidth(0.5)
    >>> schedule = build("po-h", num_ranks=4, num_microbatches=4, costs=costs)
    >>> print(draw(simulate(schedule, costs), width=100).rpartition("\\n")[0])
    rank 0     |F|F|...|f|F|f|.|F|...|b|w|f|...|b|w|f|B|W|.|b|w|.|B|W|b|w|B|W|B|W|
    rank 0 out   |O0 |O1 | |O2 | |O3 |
    rank 0 in                                    |L0 |       |L1 |   |L2 |L3 |
    rank 1       |F|F|...|f|F|f|...|b|w|F|.|f|b|w|.|B|W|f|b|w|.|B|W|b|w|B|W|B|W|
    rank 1 out     |O0 |O1 | |O2 |       |O3 |
    rank 1 in                                  |L0 |       |L1 |   |L2 |L3 |
    rank 2         |F|F|...|f|F|.|b|w|f|.|F|b|w|f|B|W|.|b|w|f|B|W|b|w|B|W|B|W|
    rank 2 out       |O0 |O1 | |O2 |       |O3 |
    rank 2 in                                |L0 |       |L1 |   |L2 |L3 |
    rank 3           |F|F|...|f|b|w|F|.|f|b|w|F|B|W|f|b|w|B|W|f|b|w|B|W|B|W|
    rank 3 out         |O0 |O1 |     |O2 |     |O3 |
    rank 3 in                              |L0 |     |L1 |     |L2 |L3 |
    """
    repeated = _repeated(num_ranks, num_microbatches, v)
    is_moved = np.arange(num_ranks * v) < (v + 1) // 2 * num_ranks
    return with_least_memory(repeated, costs, is_moved)


def _repeated(num_ranks: int, num_microbatches: int, v: int) -> Schedule:
    """Start the same block of slots every 3v slots: F, B and W of every stage of a rank.

    Up to some slots that keep the stages of a rank apart, a microbatch comes round to the next
    stage of a rank after 3 ceil(p/2) slots, forward and back. Its F and B hop to the next rank in
    one or two slots, three both together, so that F, B and W of a rank take turns.
    """
    group = (num_ranks + 1) // 2
    turn = v // gcd(group, v)
    rounds = [3 * (group * k + k // turn) for k in range(v)]
    down = [rank + rank // 2 for rank in range(num_ranks)]
    up = list(accumulate((2 - rank % 2 for rank in reversed(range(num_ranks - 1))), initial=0))
    forward = np.add.outer(rounds, down)
    backward = np.add.outer(rounds[::-1], up[::-1]) + forward[-1, -1] + 1
    orders = [
        _by_slot(num_ranks, num_microbatches, rank, forward[:, rank], backward[:, rank])
        for rank in range(num_ranks)
    ]
    return Schedule("po-h", looped(num_ranks, v), num_microbatches, tuple(orders))


def _by_slot(
    num_ranks: int, num_microbatches: int, rank: int, forward: Codes, backward: Codes
) -> Codes:
    """Order the ops of a rank by the slots of F, B and, behind B, W of each of its stages."""
    v = len(forward)
    stages = rank + num_ranks * np.arange(v)
    kinds = np.array([Kind.F, Kind.B, Kind.W])[:, None]
    firsts = (kinds * num_ranks * v + stages) * num_microbatches
    slots = np.array([forward, backward, backward + 1])
    microbatches = np.arange(num_microbatches)
    codes = np.add.outer(firsts, microbatches).reshape(-1)
    order: Codes = codes[np.argsort(np.add.outer(slots, 3 * v * microbatches), axis=None)]
    return order
