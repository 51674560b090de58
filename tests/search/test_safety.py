"""Is everything that the search builds whole, within the limits, and not below its bound?"""

from math import inf

import numpy as np
import pytest

from benchmarks.instances import Case, draw_case
from benchmarks.safety import faults_of
from zerobubble.costs import Costs
from zerobubble.ir import Placement
from zerobubble.search import search
from zerobubble.verify import verify

# In parts, so that several processes share them.
NUM_PARTS, INSTANCES_A_PART = 4, 500


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_instances(part):
    begin = part * INSTANCES_A_PART
    for number in range(begin, begin + INSTANCES_A_PART):
        case = draw_case(number, seed=0)
        num_checked, faults = faults_of(case)
        assert not faults, case
        assert num_checked > 0 or case.way == "justified", case


def test_an_instance_is_made_again_from_its_line():
    case = draw_case(7, seed=0)
    assert eval(repr(case), {"Case": Case, "inf": inf}) == case


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("memory", [2, inf])
def test_a_stage_whose_ops_take_no_time_is_scheduled(memory):
    """It wants no share of the memory, however much there is."""
    times = ([0, 1, 0], [2, 2, 0], [1, 1, 0], [1, 1, 1])
    costs = Costs(*map(np.array, times), np.ones(3), np.ones(3))
    found = search(costs, 2, 3, memory, Placement((0, 1, 0)), effort="quick")
    verify(found.schedule, costs, memory)
