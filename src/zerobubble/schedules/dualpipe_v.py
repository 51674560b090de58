"""DualPipeV: a V whose middle pairs every forward with the backward of another microbatch."""

from collections import deque
from collections.abc import Iterator

from zerobubble.ir import BW, B, F, Op, W, v_shape
from zerobubble.schedules.registry import schedule


@schedule("dualpipe-v", placement=v_shape, paper="arXiv 2412.19437, section 3.2.1")
def dualpipe_v(rank: int, *, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Pair F of a stage with BW of the rank's other one: memory p + 1/2, bubble (p-1)(F+B-W)/2.

    The bubble holds at equal times. The pairs are made to be overlapped on one device and run one
    after the other here, F first; at both ends the backward is split, so that W fills waits. With
    fewer than 2p microbatches the schedule is the one for 2p, less what belongs to the others.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("dualpipe-v", num_ranks=3, num_microbatches=6)
    >>> print(draw(simulate(schedule, Costs.uniform(6)), width=120))
    rank 0 |F|F|F|F|F|f|b|w|f|b|w|f|F|bw2|f|BW0|bw3|f|.|BW1|bw4|f|.|BW2|bw5|B|W|B|W|B|W|
    rank 1   |F|F|F|f|F|f|b|w|f|F|bw1|f|BW0|F|bw2|f|BW1|bw3|f|.|BW2|bw4|BW3|b|B|w|B|W|W|
    rank 2     |F|f|F|f|F|f|F|bw0|f|BW0|F|bw1|f|BW1|F|bw2|f|BW2|bw3|BW3|bw4|B|b|B|W|w|W|
    F forward, B input gradient, W weight gradient, BW both gradients, . idle, F0 f0 stages of a rank in order
    """  # noqa: E501
    ops = _ops(rank, num_ranks, max(num_microbatches, 2 * num_ranks))
    return (op for op in ops if op.microbatch < num_microbatches)


def _ops(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield the ops in the eight steps of DualPipeV, which need at least 2p microbatches."""
    here = _Rank(down := rank, up := 2 * num_ranks - 1 - rank)
    num_later = num_ranks - 1 - rank
    for _ in range(2 * num_later):
        yield here.forward(down)
    for _ in range(rank + 1):
        yield from (here.forward(down), here.forward(up))
    for _ in range(num_later):
        yield from (here.split_backward(up), here.weight(), here.forward(up))
    for _ in range(num_microbatches - 2 * num_ranks + rank + 1):
        yield from (here.forward(down), here.backward(up))
        yield from (here.forward(up), here.backward(down))
    for _ in range(num_later):
        yield from (here.backward(up), here.forward(up), here.backward(down))
    for turn in range(2 * (rank + 1)):
        backward = here.backward if turn <= rank else here.split_backward
        yield backward(down if turn % 2 else up)
    for _ in range(num_later):
        yield from (here.weight(), here.split_backward(down))
    for _ in range(rank + 1):
        yield here.weight()


class _Rank:
    """Numbers the ops of two stages and keeps the weight gradients that are due."""

    def __init__(self, down: int, up: int) -> None:
        self.num_forwards = {down: 0, up: 0}
        self.num_backwards = {down: 0, up: 0}
        self.due: deque[Op] = deque()

    def forward(self, stage: int) -> Op:
        self.num_forwards[stage] += 1
        return F(stage, self.num_forwards[stage] - 1)

    def backward(self, stage: int) -> Op:
        self.num_backwards[stage] += 1
        return BW(stage, self.num_backwards[stage] - 1)

    def split_backward(self, stage: int) -> Op:
        self.due.append(W(stage, self.num_backwards[stage]))
        return B(stage, self.backward(stage).microbatch)

    def weight(self) -> Op:
        return self.due.popleft()
