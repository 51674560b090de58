"""ZB-V: two stages a rank, down and up, without a bubble in the memory of 1F1B."""

import numpy as np

from zerobubble.costs import Costs
from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules.registry import schedule
from zerobubble.schedules.v_rounds import v_rounds


@schedule("zb-v", placement=v_shape, paper="arXiv 2401.10241, section 6")
def zb_v(*, num_ranks: int, num_microbatches: int, costs: Costs) -> Schedule:
    """Advance all ranks round by round, none waiting longer than others: no bubble, memory p.

    The bubble is zero with equal times and m >= 2p. With other times the ranks share one idle
    budget. For equal stages, F >= B and W of a rank and c a hop, the bubble is then
    (p-1)(F+B)/2 + 6(p-1)c - (2p-1)W/2, unless that is negative.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("zb-v", num_ranks=3, num_microbatches=6)
    >>> print(draw(simulate(schedule, Costs.uniform(6)), width=120))
    rank 0 |F|F|F|F|F|f|b|w|f|b|w|f|b|w|F|B|W|f|b|w|B|W|f|b|w|B|W|f|b|B|W|B|W|B|w|W|
    rank 1   |F|F|F|f|F|f|b|w|f|b|w|F|B|W|f|b|w|F|B|W|f|b|w|B|W|f|b|B|b|B|W|B|w|W|w|W|
    rank 2     |F|f|F|f|F|f|b|w|F|B|W|f|b|w|F|B|W|f|b|w|F|B|W|f|b|B|b|B|b|B|w|W|w|W|w|W|
    F forward, B input gradient, W weight gradient, F0 f0 stages of a rank in order
    """
    placement = v_shape(num_ranks)
    holders = np.asarray(placement.stage_to_rank)
    microbatch = np.bincount(holders, weights=costs.activation)
    limits = num_ranks * microbatch
    best = v_rounds(costs, num_microbatches, limits)
    if best.idle > 0:
        other = v_rounds(costs, num_microbatches, limits, push_forward=True)
        best = min(best, other, key=lambda rounds: rounds.idle)
    return Schedule("zb-v", placement, num_microbatches, best.orders)
