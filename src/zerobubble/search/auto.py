"""ZB-auto: which schedule does the search find, under a name as any other schedule has one?"""

from zerobubble.costs import Costs
from zerobubble.ir import Placement, Schedule, looped, wave
from zerobubble.schedules.registry import schedule

# The search tries all registered schedules but this one.
AUTO = "zb-auto"


def wave_or_looped(num_ranks: int, v: int) -> Placement:
    """Place an even number of stages a rank as a wave (V for two), an odd one looped.

    >>> [str(wave_or_looped(4, v)) for v in (1, 2, 3, 4)]
    ['linear', 'v', 'looped:3', 'wave:4']
    """
    return looped(num_ranks, v) if v % 2 else wave(num_ranks, v)


@schedule(AUTO, placement=wave_or_looped, paper="arXiv 2401.10241, section 3")
def zb_auto(
    *, num_ranks: int, num_microbatches: int, costs: Costs, v: int = 2, memory: int | None = None
) -> Schedule:
    """Search for the shortest span for the costs, in memory for so many microbatches, or p.

    A rank may hold ``memory`` times what one microbatch allocates on all its stages. This is
    ``zerobubble.search`` with quick effort: no worse than any other named schedule with this
    placement that fits into the memory. Half the memory of 1F1B, and proved the best possible:

    >>> from zerobubble import Costs, build, simulate
    >>> from zerobubble.view.text import draw
    >>> schedule = build("zb-auto:memory=2", num_ranks=4, num_microbatches=4)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F|F|F|.......|f|b|w|f|b|.....|B|w|W|F|f|b|B|w|W|.|f|b|B|w|W|.....|B|W|
    rank 1   |F|F|.....|f|.|f|b|w|F|...|B|b|W|w|f|F|B|b|W|w|f|.|B|b|W|w|...|B|W|
    rank 2     |F|F|.|f|.|f|...|b|w|F|B|W|.|b|f|w|B|F|W|b|f|w|B|W|.|b|w|.|B|W|
    rank 3       |F|f|F|f|.......|b|B|w|W|F|f|b|B|w|W|F|f|b|B|w|W|...|b|B|w|W|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    from zerobubble.search import search
    from zerobubble.search.limits import smallest_memory

    placement = wave_or_looped(num_ranks, v)
    limits = (memory or num_ranks) * smallest_memory(costs, placement)
    found = search(costs, num_ranks, num_microbatches, limits, placement, effort="quick")
    return found.schedule
