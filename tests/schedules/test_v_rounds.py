"""Does the round-by-round construction keep its limits for any costs, and know its idle time?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError
from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules import build
from zerobubble.schedules.v_rounds import v_rounds
from zerobubble.simulate import simulate
from zerobubble.verify import verify

SWITCHES = {"push_backward": st.booleans(), "push_forward": st.booleans()}


def schedule_of(rounds, p, m):
    return Schedule.from_ops("rounds", v_shape(p), m, rounds.orders)


@given(st.integers(1, 5), st.integers(1, 12), st.data())
def test_zb_v_fits_the_memory_of_p_microbatches_at_any_costs(p, m, data):
    costs = data.draw(costs_for(2 * p))
    microbatch = costs.activation[:p] + costs.activation[p:][::-1]
    verify(build("zb-v", p, m, costs), costs, p * microbatch)


@given(st.integers(1, 5), st.integers(1, 12), st.data(), st.fixed_dictionaries(SWITCHES))
def test_the_idle_time_is_known(p, m, data, switches):
    costs = data.draw(costs_for(2 * p))
    microbatch = costs.activation[:p] + costs.activation[p:][::-1]
    rounds = v_rounds(costs, m, p * microbatch, **switches)
    timeline = simulate(schedule_of(rounds, p, m), costs)
    assert timeline.span - max(timeline.work_per_rank) == pytest.approx(
        rounds.idle, abs=1e-6 * max(1.0, timeline.span)
    )


@given(st.integers(1, 5), st.integers(1, 14), st.data())
def test_any_limit_that_holds_one_microbatch_is_kept(p, m, data):
    sizes = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    activation = np.array(data.draw(st.lists(sizes, min_size=2 * p, max_size=2 * p)))
    ones = np.ones(2 * p)
    costs = Costs(3 * ones, 4 * ones, 2 * ones, 0.5 * ones, activation, 0.5 * activation)
    shares = data.draw(st.lists(st.floats(1, 6), min_size=p, max_size=p))
    limits = shares * (activation[:p] + activation[p:][::-1])
    verify(schedule_of(v_rounds(costs, m, limits), p, m), costs, limits)


def test_too_little_memory_is_told():
    with pytest.raises(ScheduleError, match="rank 0 needs memory for one microbatch of both"):
        v_rounds(Costs.uniform(4), 3, [1, 4])


def test_a_fixed_budget_bounds_what_w_may_delay():
    """With no budget at all every wait is filled as soon as any W is pending."""
    costs = Costs.uniform(16, f=1, b=1.2, w=0.8, transfer=0.1)
    free = v_rounds(costs, 24, [16.0] * 8)
    tight = v_rounds(costs, 24, [16.0] * 8, budget=0.0)
    assert free.idle < tight.idle
    verify(schedule_of(tight, 8, 24), costs, 16)


def test_a_heavy_last_stage():
    """The busiest rank decides: others wait for it without pushing W in the way."""
    times = np.ones(8)
    times[-1] = 1.6
    costs = Costs(times, times, times, 0 * times, times * 0 + 1, times * 0 + 1)
    timeline = simulate(build("zb-v", 4, 16, costs), costs)
    assert timeline.bubble < 0.01
    assert timeline.peak_memory <= 8
