"""Are memory limits refused exactly where no schedule fits, with the limit that will do?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.test_bounds import one_after_the_other
from tests.strategies import costs_for, placements, schedules
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Placement, linear, wave
from zerobubble.search.bounds import lower_bound
from zerobubble.search.limits import memory_limits, smallest_memory
from zerobubble.simulate import simulate
from zerobubble.verify import verify


@given(placements(), st.integers(1, 3), st.data())
def test_a_schedule_fits_into_the_smallest_memory(placement, num_microbatches, data):
    costs = data.draw(costs_for(placement.num_stages))
    needed = smallest_memory(costs, placement)
    verify(one_after_the_other(placement, num_microbatches), costs, needed)
    assert memory_limits(needed, costs, placement).tolist() == needed.tolist()


@given(schedules(), st.data())
def test_no_schedule_fits_into_less(schedule, data):
    costs = data.draw(costs_for(schedule.num_stages))
    peaks = simulate(schedule, costs).peak_memory_per_rank
    assert (peaks >= smallest_memory(costs, schedule.placement) * (1 - 1e-9)).all()


@given(placements(), st.data())
def test_less_is_refused_on_the_rank_that_lacks_it(placement, data):
    costs = Costs.uniform(placement.num_stages)
    limits = smallest_memory(costs, placement)
    rank = data.draw(st.integers(0, placement.num_ranks - 1))
    limits[rank] *= 0.99
    with pytest.raises(UsageError, match=f"^rank {rank}: no schedule fits into memory"):
        lower_bound(costs, placement, 2, limits)


def test_the_error_names_the_smallest_limit_and_why():
    costs = Costs.uniform(4, activation=0.75)
    with pytest.raises(UsageError) as error:
        lower_bound(costs, wave(2, 2), 4, memory=[2, 1])
    assert str(error.value) == (
        "rank 1: no schedule fits into memory 1: when F0 of stage 2 runs, the rank holds one "
        "activation of stages 1, 2, together 1.5: allow at least 1.5 on rank 1"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": [1, 2, 3]}, "3 memory limits given for 2 ranks"),
        ({"memory": [[1, 2]]}, "2 memory limits given for 2 ranks"),
        ({"memory": -1}, "must not be negative or nan"),
        ({"memory": [4, np.nan]}, "must not be negative or nan"),
        ({"memory": 0}, "rank 0: no schedule fits into memory 0"),
        ({"num_microbatches": 0}, "microbatches must be at least 1, not 0"),
        ({"costs": Costs.uniform(3)}, "costs for 3 stages given"),
        ({"objective": "length"}, "objective must be span or makespan, not 'length'"),
    ],
)
def test_wrong_numbers(change, message):
    given = {"costs": Costs.uniform(2), "placement": linear(2), "num_microbatches": 4} | change
    with pytest.raises(UsageError, match=message):
        lower_bound(**given)


def test_one_limit_serves_all_ranks():
    placement = Placement((0, 1, 0))
    assert memory_limits(3, Costs.uniform(3), placement).tolist() == [3, 3]
    assert memory_limits(np.inf, Costs.uniform(3), placement).tolist() == [np.inf, np.inf]
