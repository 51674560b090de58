"""Wave: the stages go down and up the ranks several times, and 1F1B follows them."""

from zerobubble.ir import BW, F, Kind, Op, Placement, Schedule
from zerobubble.ir import wave as down_and_up
from zerobubble.schedules.building_block import from_building_block
from zerobubble.schedules.registry import schedule
from zerobubble.schedules.timetable import LENGTHS, Timetable


def waves(num_ranks: int, waves: int) -> Placement:
    """Place two stages a wave on each rank, one on the way down and one on the way up."""
    return down_and_up(num_ranks, 2 * waves)


@schedule("wave", placement=waves, paper="arXiv 2308.15762, section 3")
def wave(*, num_ranks: int, num_microbatches: int, waves: int = 2) -> Schedule:
    """Send microbatches along waves (Hanayo): memory p, bubble 2(p-1)(F+B+W)/(3 waves) at m = p.

    The bubble is for B + W = 2F. Each of up to p microbatches takes the first free slots on its
    way. More than p repeat a block: then the bubble time no longer grows with m, and memory is
    p for one wave and up to 5p/3 for four.

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("wave:waves=2", num_ranks=3, num_microbatches=3)
    >>> print(draw(simulate(schedule, Costs.uniform(12)), width=120))
    rank 0 |F|F|F|...|f|F|f|F|f|F|f|bw |f|bw |f|bw |...|BW |bw0|BW |bw1|BW |bw2|BW0|...|BW1|...|BW2|
    rank 1   |F|F|F|f|.|f|F|f|F|f|F|f|.|bw |f|bw |.|BW |bw |BW |bw0|BW |bw1|BW0|bw2|BW1|...|BW2|
    rank 2     |F|f|F|f|F|f|F|f|F|f|F|f|...|bw |BW |bw |BW |bw |BW |bw0|BW0|bw1|BW1|bw2|BW2|
    F forward, BW both gradients, . idle, F0 f0 F0' f0' stages of a rank in order
    """
    placement = down_and_up(num_ranks, 2 * waves)
    if num_microbatches <= num_ranks:
        return _one_after_the_other(placement, num_microbatches)
    forward, backward = _block(placement)
    return from_building_block(
        placement, num_microbatches, forward=forward, backward=backward, fused=True
    )


def _path(num_stages: int, microbatch: int) -> list[Op]:
    """List the ops of a microbatch in the order in which they need each other."""
    forward = [F(stage, microbatch) for stage in range(num_stages)]
    return forward + [BW(stage, microbatch) for stage in reversed(range(num_stages))]


def _one_after_the_other(placement: Placement, num_microbatches: int) -> Schedule:
    """Give every microbatch the first slots that those before it have left free."""
    busy: list[set[int]] = [set() for _ in range(placement.num_ranks)]
    starts: dict[Op, int] = {}
    for i in range(num_microbatches):
        slot = 0
        for op in _path(placement.num_stages, i):
            taken, length = busy[placement.stage_to_rank[op.stage]], LENGTHS[op.kind]
            while not taken.isdisjoint(range(slot, slot + length)):
                slot += 1
            taken.update(range(slot, slot + length))
            starts[op] = slot
            slot += length
    return Timetable("wave", placement, num_microbatches, starts).schedule()


def _block(placement: Placement) -> tuple[list[int], list[int]]:
    """Give the start slots of F and BW of a microbatch that repeats without conflict.

    The time of a rank is cut into cells of one F and one BW. They start one slot earlier on each
    rank than on the one before, so that BW goes down the ranks, and F up, without a wait.
    """
    num_stages, cell = placement.num_stages, LENGTHS[Kind.F] + LENGTHS[Kind.BW]
    period = num_stages // placement.num_ranks * cell
    taken: set[tuple[int, int]] = set()
    starts: list[int] = []
    slot = 0
    for kind, stage, _ in _path(num_stages, 0):
        rank = placement.stage_to_rank[stage]
        first = 0 if kind == Kind.F else LENGTHS[Kind.F]
        while (slot + rank) % cell != first or (rank, slot % period) in taken:
            slot += 1
        taken.add((rank, slot % period))
        starts.append(slot)
        slot += LENGTHS[kind]
    return starts[:num_stages], starts[num_stages:][::-1]
