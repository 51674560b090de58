"""Interleaved 1F1B: several stages a rank shorten the warm-up."""

from collections.abc import Iterator

from zerobubble.errors import ScheduleError
from zerobubble.ir import BW, F, Op, looped
from zerobubble.schedules.registry import schedule


@schedule("interleaved", placement=looped, paper="arXiv 2104.04473, section 2.2")
def interleaved(rank: int, *, num_ranks: int, num_microbatches: int, v: int = 2) -> Iterator[Op]:
    """Alternate over v stages a rank: bubble (p-1)(F+B+W)/v, memory p(1 + (p-1)/(pv)).

    Groups of p microbatches pass through the stages of the rank in turn.

    Raises:
        ScheduleError: the number of microbatches is not a multiple of the number of ranks.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("interleaved", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=80))
    rank 0 |F|F|F|F|f|f|f|f|...........|bw0|.|bw1|.|bw2|.|bw3|BW0|BW1|BW2|BW3|
    rank 1   |F|F|F|F|f|f|f|f|.....|bw0|.|bw1|.|bw2|.|bw3|BW0|BW1|BW2|BW3|
    rank 2     |F|F|F|F|f|f|f|.|bw0|f|bw1|.|bw2|.|bw3|BW0|BW1|BW2|BW3|
    rank 3       |F|F|F|F|f|bw0|f|bw1|f|bw2|f|bw3|BW0|BW1|BW2|BW3|
    F forward, BW both gradients, . idle, F0 f0 stages of a rank in order
    """
    if num_microbatches % num_ranks:
        raise ScheduleError(
            f"interleaved needs a multiple of {num_ranks} microbatches, not {num_microbatches}"
        )
    stages = range(rank, num_ranks * v, num_ranks)
    forwards = list(grouped(stages, num_ranks, num_microbatches))
    backwards = list(grouped(stages[::-1], num_ranks, num_microbatches))
    warm_up = min(2 * (num_ranks - rank - 1) + (v - 1) * num_ranks + 1, len(forwards))
    for stage, i in forwards[:warm_up]:
        yield F(stage, i)
    for position, (stage, i) in enumerate(backwards):
        yield BW(stage, i)
        for next_stage, j in forwards[warm_up + position : warm_up + position + 1]:
            yield F(next_stage, j)


def grouped(stages: range, group: int, num_microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield stage and microbatch as groups of microbatches pass through the stages in turn."""
    for first in range(0, num_microbatches, group):
        for stage in stages:
            for i in range(first, min(first + group, num_microbatches)):
                yield stage, i
