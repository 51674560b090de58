"""Breadth-first: every stage runs all its microbatches before the next stage of its rank."""

from collections.abc import Iterator

from zerobubble.ir import BW, F, Op, looped
from zerobubble.schedules.registry import schedule


@schedule("breadth-first", placement=looped, paper="arXiv 2211.05953, section 4")
def breadth_first(rank: int, *, num_ranks: int, num_microbatches: int, v: int = 2) -> Iterator[Op]:
    """Run each of v stages for all microbatches at once: bubble (p-1)(F+B+W)/v, memory m.

    The gradients of a stage are complete early and all at once, so that reducing them over
    data-parallel replicas overlaps with the stages that follow.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("breadth-first", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F|F|F|F|f|f|f|f|.................|bw0|bw1|bw2|bw3|BW0|BW1|BW2|BW3|
    rank 1   |F|F|F|F|f|f|f|f|...........|bw0|bw1|bw2|bw3|BW0|BW1|BW2|BW3|
    rank 2     |F|F|F|F|f|f|f|f|.....|bw0|bw1|bw2|bw3|BW0|BW1|BW2|BW3|
    rank 3       |F|F|F|F|f|f|f|f|bw0|bw1|bw2|bw3|BW0|BW1|BW2|BW3|
    F forward, BW both gradients, . idle, F0 f0 stages of a rank in order
    """
    stages = range(rank, num_ranks * v, num_ranks)
    for stage in stages:
        for i in range(num_microbatches):
            yield F(stage, i)
    for stage in reversed(stages):
        for i in range(num_microbatches):
            yield BW(stage, i)
