"""V-Half: two stages a rank, down and up, in half the memory of 1F1B."""

from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules.building_block import from_building_block
from zerobubble.schedules.registry import schedule


@schedule("v-half", placement=v_shape, paper="arXiv 2405.15362, section 3.2")
def v_half(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Repeat a block that goes down half as fast as up: peak memory (p+2)//2.

    If F, B and W of a stage each take t, the bubble is (3p-7)t for even p >= 4, and (3p-4)t for
    odd p >= 3.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("v-half", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F0|F1|F2|F3|........|f0|b0|w0|f1|b1|w1|f2|.....|B0|b2|W0|f3|b3|B1|w2|w3|W1|B2|W2|B3|W3|
    rank 1    |F0|F1|F2|F3|..|f0|..|f1|b0|w0|f2|b1|w1|..|B0|W0|..|f3|b2|B1|b3|w2|W1|B2|w3|B3|W2|W3|
    rank 2       |F0|F1|F2|f0|..|f1|..|f2|b0|w0|F3|b1|B0|W0|w1|f3|..|B1|b2|W1|b3|B2|w2|B3|w3|W2|W3|
    rank 3          |F0|f0|F1|f1|F2|f2|.....|b0|w0|B0|W0|F3|f3|b1|B1|w1|W1|b2|B2|b3|B3|w2|W2|w3|W3|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    p = num_ranks
    shift = 0 if p % 2 else 3
    first_up, last = 3 * p - 1 + shift, 6 * p - 2 + shift
    return from_building_block(
        v_shape(p),
        num_microbatches,
        forward=[*range(0, 2 * p, 2), *range(2 * p - 1, 3 * p - 1)],
        backward=[*range(last, last - p, -1), *range(first_up + 2 * p - 2, first_up - 1, -2)],
    )
