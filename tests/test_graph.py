"""Are the dependencies right, and is an order found whenever there is one?"""

import pytest
from hypothesis import given

from tests.strategies import lists_of_ops, schedules, with_orders
from zerobubble.errors import ScheduleError
from zerobubble.graph import producers, run_order
from zerobubble.ir import BW, B, F, Schedule, W, linear


def need(schedule, op):
    code = int(producers(schedule)[schedule.code(op)])
    return schedule.op(code) if code >= 0 else None


def test_every_op_waits_for_its_input():
    orders = [[F(0, 0), BW(0, 0)], [F(1, 0), B(1, 0), W(1, 0)], [F(2, 0), BW(2, 0)]]
    schedule = Schedule.from_ops("mixed", linear(3), 1, orders)
    assert need(schedule, F(0, 0)) is None
    assert need(schedule, F(2, 0)) == F(1, 0)
    assert need(schedule, BW(2, 0)) == F(2, 0)
    assert need(schedule, B(1, 0)) == BW(2, 0)
    assert need(schedule, W(1, 0)) == B(1, 0)
    assert need(schedule, BW(0, 0)) == B(1, 0)


@given(schedules())
def test_the_order_of_all_obeys_ranks_and_inputs(schedule):
    order = run_order(schedule)
    place = {code: index for index, code in enumerate(order)}
    assert len(place) == len(order) == schedule.num_ops
    for rank_order in schedule.orders:
        assert [place[c] for c in rank_order] == sorted(place[c] for c in rank_order)
    needs = producers(schedule)
    assert all(place[int(needs[c])] < place[c] for c in order if needs[c] >= 0)


def test_a_circle_is_named():
    orders = [[F(0, 0), BW(0, 0), F(0, 1), BW(0, 1)], [F(1, 0), F(1, 1), BW(1, 0), BW(1, 1)]]
    with pytest.raises(ScheduleError) as error:
        run_order(Schedule.from_ops("stuck", linear(2), 2, orders))
    assert str(error.value) == (
        "stuck: rank 0 waits in BW0 of stage 0 for BW0 of stage 1; rank 1 waits in F1 of stage 1 "
        "for F1 of stage 0: a circle (rule no-cycle): move one of these ops earlier"
    )


@given(schedules())
def test_an_op_that_no_rank_runs_is_named(schedule):
    orders = lists_of_ops(schedule)
    first = next(ops for ops in orders if F(0, 0) in ops)
    first.remove(F(0, 0))
    with pytest.raises(ScheduleError, match=r"for F0 of stage 0, which no rank runs .*: add it"):
        run_order(with_orders(schedule, orders))
