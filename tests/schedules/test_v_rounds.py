"""Does the round-by-round construction keep its limits for any costs, and know its idle time?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for
from tests.test_jit import both_ways, needs_numba
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError
from zerobubble.ir import Schedule, v_shape
from zerobubble.schedules import build
from zerobubble.schedules.v_rounds import v_rounds
from zerobubble.simulate import simulate
from zerobubble.verify import verify, violations

SWITCHES = {"push_backward": st.booleans(), "push_forward": st.booleans()}
BUDGETS = st.none() | st.floats(0, 20)


def schedule_of(rounds, p, m):
    return Schedule("rounds", v_shape(p), m, rounds.orders)


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


@st.composite
def problems(draw):
    """Draw any costs, and for each rank a limit that holds one microbatch or more."""
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 14))
    costs = draw(costs_for(2 * p))
    shares = draw(st.lists(st.floats(1, 6), min_size=p, max_size=p))
    return p, m, costs, shares * (costs.activation[:p] + costs.activation[p:][::-1])


@given(problems(), st.fixed_dictionaries({**SWITCHES, "budget": BUDGETS}))
def test_any_limit_that_holds_one_microbatch_is_kept(problem, switches):
    p, m, costs, limits = problem
    schedule = schedule_of(v_rounds(costs, m, limits, **switches), p, m)
    assert violations(schedule, costs, limits) == []


@needs_numba
@given(problems(), st.fixed_dictionaries({**SWITCHES, "budget": BUDGETS}))
def test_compiled_and_plain_python_give_the_same_orders(problem, switches):
    _, m, costs, limits = problem
    compiled, python = both_ways(lambda: v_rounds(costs, m, limits, **switches))
    assert compiled.idle == python.idle
    assert all(map(np.array_equal, compiled.orders, python.orders))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24), (8, 64), (64, 512)])
def test_the_bubble_of_equal_stages_has_a_closed_form(p, m):
    f, b, w, c = 11.347, 11.248, 8.132, 0.377
    costs = Costs.uniform(2 * p, f=f / 2, b=b / 2, w=w / 2, transfer=c)
    idle = v_rounds(costs, m, [2.0 * p] * p).idle
    assert idle == pytest.approx((p - 1) * (f + b + 12 * c) / 2 - (2 * p - 1) * w / 2, abs=1e-9)


def test_a_stage_without_activations_takes_no_room():
    ones = np.ones(4)
    costs = Costs(ones, ones, ones, 0 * ones, np.array([0.0, 0, 1, 1]), 0 * ones)
    assert violations(schedule_of(v_rounds(costs, 3, [1, 1]), 2, 3), costs, 1) == []


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
