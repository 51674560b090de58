"""What do O, L and R mean to the rules, to the simulation and to memory?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import BW, B, F, Kind, L, O, R, Schedule, W, linear
from zerobubble.lower import Action, lower
from zerobubble.simulate import simulate
from zerobubble.verify import verify


def _one_rank(*ops, num_microbatches=1):
    return Schedule.from_ops("mine", linear(1), num_microbatches, [ops])


MOVED = _one_rank(
    F(0, 0), F(0, 1), O(0, 0), F(0, 2), L(0, 0), BW(0, 0), BW(0, 1), R(0, 2), BW(0, 2),
    num_microbatches=3,
)  # fmt: skip
COSTS = Costs.uniform(1, f=1, b=2, w=1).with_bandwidth(0.5)


def test_copies_run_beside_the_compute():
    """F1 hides half of the copy to the host; the compute passes O when it has ended."""
    timeline = simulate(MOVED, COSTS)
    times = {str(op): (start, end) for _, op, start, end in timeline.timed_ops(0)}
    assert times["O0 of stage 0"] == (1, 3)
    assert times["F2 of stage 0"] == (3, 4)
    assert times["L0 of stage 0"] == (4, 6)
    assert times["BW0 of stage 0"] == (6, 9)
    assert timeline.span == timeline.makespan == 16
    assert timeline.work_per_rank == [13]


def test_memory_goes_where_the_order_says():
    times, held = simulate(MOVED, COSTS).memory_curve(0)
    assert held.tolist() == [1, 2, 1, 1, 2, 1, 0, 1, 0]
    assert times.tolist() == [0, 1, 3, 3, 4, 9, 12, 12, 16]


def test_what_stays_resident_counts():
    costs = replace(COSTS, activation_offloaded=[0.75], activation_input=[0.25])
    _, held = simulate(MOVED, costs).memory_curve(0)
    assert held.tolist() == [1, 2, 1.25, 1.5, 2.25, 1.25, 0.25, 1, 0]


def test_copies_of_one_direction_follow_each_other():
    ops = [F(0, 0), F(0, 1), O(0, 1), O(0, 0), L(0, 1), L(0, 0), BW(0, 0), BW(0, 1)]
    timeline = simulate(_one_rank(*ops, num_microbatches=2), COSTS)
    times = {str(op): (start, end) for _, op, start, end in timeline.timed_ops(0)}
    assert times["O0 of stage 0"] == (1, 3), "in the order of the forwards"
    assert times["O1 of stage 0"] == (3, 5)
    assert times["L1 of stage 0"] == (5, 7), "in the order of the loads"
    assert times["L0 of stage 0"] == (7, 9)


def test_ranks_that_share_an_engine_take_turns():
    ops = [[F(s, 0), O(s, 0), L(s, 0), BW(s, 0)] for s in range(2)]
    schedule = Schedule.from_ops("mine", linear(2), 1, ops)
    costs = Costs.uniform(2, f=1, b=1, w=1).with_bandwidth(0.25)
    alone, shared = (simulate(schedule, replace(costs, ranks_per_engine=n)) for n in (1, 2))
    assert [alone.start[1][1], alone.end[1][1]] == [2, 6]
    assert [shared.start[1][1], shared.end[1][1]] == [5, 9], "the copy of rank 0 ends at 5"


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([F(0, 0), O(0, 0), BW(0, 0)], "has O0 but no L0 .*one-way-back.*: add L0, or delete O0"),
        ([F(0, 0), L(0, 0), BW(0, 0)], "has L0 but no O0"),
        ([F(0, 0), L(0, 0), O(0, 0), BW(0, 0)], "L0 of stage 0 runs before O0"),
        ([F(0, 0), O(0, 0), BW(0, 0), L(0, 0)], "BW0 of stage 0 runs before L0"),
        ([F(0, 0), O(0, 0), B(0, 0), L(0, 0), W(0, 0)], "B0 of stage 0 runs before L0"),
        ([O(0, 0), F(0, 0), L(0, 0), BW(0, 0)], "O0 of stage 0 runs before F0"),
        ([F(0, 0), O(0, 0), L(0, 0), R(0, 0), BW(0, 0)], "has both O0 and R0"),
        ([R(0, 0), F(0, 0), BW(0, 0)], "R0 of stage 0 runs before F0"),
        ([F(0, 0), BW(0, 0), R(0, 0)], "BW0 of stage 0 runs before R0"),
        ([F(0, 0), R(0, 0), R(0, 0), BW(0, 0)], "R0 of stage 0 runs 2 times"),
    ],
)
def test_rules(ops, message):
    with pytest.raises(ScheduleError, match=message):
        verify(_one_rank(*ops))


def test_the_limit_counts_what_is_under_way():
    verify(MOVED, COSTS, memory=2)
    with pytest.raises(ScheduleError, match=r"F1 of stage 0 .*raises activation memory to 2"):
        verify(MOVED, COSTS, memory=1)


def test_validation_comes_behind_the_offloads_of_the_warm_up():
    ops = [F(0, 0), O(0, 0), F(0, 1), L(0, 0), BW(0, 0), BW(0, 1)]
    (program,) = lower(_one_rank(*ops, num_microbatches=2))
    told = [(i.action, i.op) for i in program.to_validation]
    assert told[-1] == (Action.VALIDATE, L(0, 0))
    assert (Action.RUN, O(0, 0)) in told


def test_tables_of_plain_schedules_have_no_rows_for_copies():
    assert _one_rank(F(0, 0), BW(0, 0)).num_codes == 4
    assert MOVED.num_codes == len(Kind) * 3


@given(st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_costs_go_through_their_file(values):
    names = ("offload", "load", "recompute", "activation_offloaded", "activation_input")
    shares = dict(zip(names[:3], values, strict=False)) | {names[3]: 0.5, names[4]: 0.25}
    costs = Costs.from_dict(
        {"forward": 1, "backward_input": 2, "backward_weight": 1} | shares, linear(3)
    )
    again = Costs.from_dict(costs.to_dict(), linear(3))
    for name in names:
        assert np.array_equal(getattr(costs, name), getattr(again, name)), name
    assert set(Costs.uniform(2).to_dict()).isdisjoint(names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation_offloaded": [2.0]}, "activation_offloaded must not exceed activation"),
        ({"activation_input": [2.0]}, "activation_input must not exceed activation"),
        ({"offload": [-1.0]}, "offload must be between 0"),
        ({"load": [1.0, 1.0]}, "load has 2 values for 1 stages"),
        ({"ranks_per_engine": 0}, "ranks_per_engine must be at least 1"),
    ],
)
def test_bad_costs(values, message):
    with pytest.raises(UsageError, match=message):
        replace(Costs.uniform(1), **values)


@pytest.mark.parametrize("bandwidth", [0, -1, float("nan"), float("inf")])
def test_bad_bandwidth(bandwidth):
    with pytest.raises(UsageError, match="bandwidth of offload must be positive"):
        Costs.uniform(1).with_bandwidth(bandwidth)
