"""Grouped interleaved: small groups of microbatches and W in the waits, in the memory of 1F1B."""

from collections.abc import Iterator

from zerobubble.errors import ScheduleError
from zerobubble.ir import B, F, Op, W, looped
from zerobubble.schedules.interleaved import grouped
from zerobubble.schedules.registry import schedule


@schedule("grouped-interleaved", placement=looped, paper="arXiv 2503.01328, section 4")
def grouped_interleaved(
    rank: int, *, num_ranks: int, num_microbatches: int, g: int | None = None, v: int = 2
) -> Iterator[Op]:
    """Send groups of g through v stages: memory (g(v-1)+p)/v, bubble (p-1)(F+B-W)/v at g = p.

    A rank alternates F and B after g(v-1) + p - rank forwards and keeps ``rank`` weight gradients
    back, so that all ranks hold the same. A smaller group needs less memory, but the rank waits
    for it to come round. The bubble holds for whole groups.

    Args:
        rank: whose ops to yield.
        num_ranks: p.
        num_microbatches: m; the last group may be smaller.
        g: microbatches of a group, from half the number of ranks to all of it (the default).
        v: stages a rank.

    Raises:
        ScheduleError: the group is smaller or larger than that.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("grouped-interleaved", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F0|F1|F2|F3|f0|f1|f2|f3|........|b0|w0|b1|w1|b2|w2|b3|w3|B0|W0|B1|W1|B2|W2|B3|W3|
    rank 1    |F0|F1|F2|F3|f0|f1|f2|.....|b0|f3|b1|w0|b2|w1|b3|w2|B0|w3|B1|W0|B2|W1|B3|W2|W3|
    rank 2       |F0|F1|F2|F3|f0|f1|..|b0|f2|b1|f3|b2|w0|b3|w1|B0|w2|B1|w3|B2|W0|B3|W1|W2|W3|
    rank 3          |F0|F1|F2|F3|f0|b0|f1|b1|f2|b2|f3|b3|w0|B0|w1|B1|w2|B2|w3|B3|W0|W1|W2|W3|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    group = num_ranks if g is None else g
    if not (num_ranks + 1) // 2 <= group <= num_ranks:
        raise ScheduleError(
            f"grouped-interleaved needs groups of {(num_ranks + 1) // 2} to {num_ranks} "
            f"microbatches on {num_ranks} ranks, not {group}"
        )
    return in_groups(rank, num_ranks, num_microbatches, group, v, delay=rank)


def in_groups(
    rank: int, num_ranks: int, num_microbatches: int, group: int, v: int, delay: int
) -> Iterator[Op]:
    """Alternate F and B in groups of microbatches, with each W ``delay`` ops behind its B."""
    stages = range(rank, num_ranks * v, num_ranks)
    whole = -(-num_microbatches // group) * group
    forwards = list(grouped(stages, group, whole))
    backwards = list(grouped(stages[::-1], group, whole))
    warm_up = group * (v - 1) + num_ranks - rank
    ops = _with_weights(forwards, backwards, warm_up, delay)
    return (op for op in ops if op.microbatch < num_microbatches)


def _with_weights(
    forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], warm_up: int, delay: int
) -> Iterator[Op]:
    """Alternate B, W and F after ``warm_up`` forwards, each W ``delay`` ops behind its B."""
    for stage, i in forwards[:warm_up]:
        yield F(stage, i)
    for position, (stage, i) in enumerate(backwards):
        yield B(stage, i)
        if position >= delay:
            yield W(*backwards[position - delay])
        for next_stage, j in forwards[warm_up + position : warm_up + position + 1]:
            yield F(next_stage, j)
    for stage, i in backwards[max(0, len(backwards) - delay) :]:
        yield W(stage, i)
