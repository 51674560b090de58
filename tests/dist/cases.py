"""Which schedules do the real processes run? Every registered one, and random ones by placement."""

import random

from tests.strategies import random_schedule
from zerobubble import build
from zerobubble.errors import ScheduleError
from zerobubble.ir import Placement
from zerobubble.schedules import REGISTRY

NAMES = [*REGISTRY, "interleaved:v=3", "wave:waves=1"]
PLACEMENTS = {
    1: {"three-stages": (0, 0, 0)},
    2: {"v": (0, 1, 1, 0), "three-stages": (0, 1, 0), "crowded": (1, 0, 0, 0, 1)},
    3: {"v": (0, 1, 2, 2, 1, 0), "four-stages": (1, 0, 2, 1)},
    4: {"v": (0, 1, 2, 3, 3, 2, 1, 0), "five-stages": (2, 0, 3, 1, 2)},
}


def defined(name, num_ranks, num_microbatches):
    """Build a registered schedule, or return None where it is not defined."""
    try:
        return build(name, num_ranks, num_microbatches)
    except ScheduleError:
        return None


def placed(num_ranks, name, num_microbatches, seed=0):
    """Build a random valid schedule for one of ``PLACEMENTS``."""
    placement = Placement(PLACEMENTS[num_ranks][name])
    return random_schedule(random.Random(seed), placement, num_microbatches)


def num_layers(schedule):
    """Take seven layers, or one more than stages: seldom a multiple of the stages."""
    return max(7, schedule.num_stages + 1)
