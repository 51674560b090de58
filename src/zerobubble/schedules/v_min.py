"""V-Min: two stages a rank, down and up, in a third of the memory of 1F1B."""

from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules.building_block import from_building_block
from zerobubble.schedules.registry import schedule


@schedule("v-min", placement=v_shape, paper="arXiv 2405.15362, section 3.2")
def v_min(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Repeat the block whose ops follow each other without a wait: peak memory (p+4)//3.

    If F, B and W of a stage each take t, the bubble is (4p-5)t, or (4p-7)t if 3 divides p: there
    the backward starts two slots later, as F and B would meet. With unequal times every
    microbatch idles, so memory for one stage more is worth much.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("v-min", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F|F|F|.......|f|b|w|f|b|.....|B|w|W|F|f|b|B|w|W|.|f|b|B|w|W|.....|B|W|
    rank 1   |F|F|.....|f|.|f|b|w|F|...|B|b|W|w|f|F|B|b|W|w|f|.|B|b|W|w|...|B|W|
    rank 2     |F|F|.|f|.|f|...|b|w|F|B|W|.|b|f|w|B|F|W|b|f|w|B|W|.|b|w|.|B|W|
    rank 3       |F|f|F|f|.......|b|B|w|W|F|f|b|B|w|W|F|f|b|B|w|W|...|b|B|w|W|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    last = 2 * num_ranks - 1
    shift = 2 if num_ranks % 3 == 0 else 0
    return from_building_block(
        v_shape(num_ranks),
        num_microbatches,
        forward=range(last + 1),
        backward=[2 * last + 1 + shift - stage for stage in range(last + 1)],
    )
