"""V-1F1B: two stages a rank, down and up, with both gradients at once, in two thirds of 1F1B."""

from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules.building_block import from_building_block
from zerobubble.schedules.registry import schedule


@schedule("v-1f1b", placement=v_shape, paper="arXiv 2405.15362, section 4")
def v_1f1b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Repeat a block with BW in place of B and W: peak memory about 2p/3.

    BW takes two of the six slots of a microbatch. If all BW followed each other without a wait,
    every third would meet a forward, so three slots are left out there.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("v-1f1b", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F|F|F|F|.....|f|bw0|f|bw1|f|bw2|...........|f|bw3|BW0|...|BW1|...|BW2|...|BW3|
    rank 1   |F|F|F|F|.|f|.|f|.|bw0|f|bw1|.|bw2|.....|f|BW0|.|bw3|BW1|...|BW2|...|BW3|
    rank 2     |F|F|F|f|.|f|.|f|...|bw0|F|bw1|.|BW0|f|bw2|.|BW1|.|bw3|BW2|...|BW3|
    rank 3       |F|f|F|f|F|f|.........|bw0|BW0|F|f|bw1|BW1|bw2|BW2|.|bw3|BW3|
    F forward, BW both gradients, . idle, F0 f0 stages of a rank in order
    """
    num_stages = 2 * num_ranks
    first = num_stages + (0 if num_ranks % 3 == 1 else 3)
    phase = 0 if num_ranks % 3 else 2
    backward = [first + 2 * n + (n + phase) // 3 * 3 for n in range(num_stages)]
    return from_building_block(
        v_shape(num_ranks),
        num_microbatches,
        forward=range(num_stages),
        backward=backward[::-1],
        fused=True,
    )
