"""Do Op, Placement and Schedule hold what they are given?"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from benchmarks import scale
from tests.strategies import lists_of_ops, placements, schedules, with_orders
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import BW, B, F, Kind, Op, Placement, Schedule, W, linear, looped, wave
from zerobubble.schedules import build


def test_ops_read_as_in_the_papers():
    assert [str(op) for op in (F(0, 1), B(2, 3), W(4, 5), BW(6, 7))] == [
        "F1 of stage 0",
        "B3 of stage 2",
        "W5 of stage 4",
        "BW7 of stage 6",
    ]


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        (linear(4), "linear"),
        (looped(4, 2), "looped:2"),
        (wave(4, 2), "v"),
        (wave(4, 4), "wave:4"),
        (Placement((0, 1, 1)), "0,1,1"),
        (Placement((1, 0)), "1,0"),
    ],
)
def test_placements_have_names(placement, name):
    assert str(placement) == name


@pytest.mark.parametrize("ranks", [(), (1,), (0, 2), (-1, 0), (0, 1, 3)])
def test_a_placement_names_every_rank(ranks):
    with pytest.raises(UsageError, match="must name every rank from 0 to the largest"):
        Placement(ranks)


@given(placements())
def test_stages_of_inverts_the_placement(placement):
    held = {s: rank for rank in range(placement.num_ranks) for s in placement.stages_of(rank)}
    assert tuple(held[s] for s in range(placement.num_stages)) == placement.stage_to_rank


@given(schedules())
def test_codes_are_dense_and_invert(schedule):
    shape = (len(Kind), schedule.num_stages, schedule.num_microbatches)
    ops = [Op(Kind(k), s, i) for k, s, i in np.ndindex(shape)]
    assert [schedule.code(op) for op in ops] == list(range(len(ops)))
    assert [schedule.op(code) for code in range(len(ops))] == ops
    for order in schedule.orders:
        fields = zip(*(field.tolist() for field in schedule.fields(order)), strict=True)
        assert [Op(Kind(k), s, i) for k, s, i in fields] == [schedule.op(c) for c in order]


@given(schedules())
def test_equal_schedules_are_equal_and_hash_alike(schedule):
    copy = with_orders(schedule, lists_of_ops(schedule))
    assert copy == schedule
    assert hash(copy) == hash(schedule)
    assert copy.renamed("other") != schedule
    assert copy.renamed("other").renamed(schedule.name) == schedule
    assert schedule != "schedule"


def test_orders_are_read_only():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), BW(0, 0)]])
    with pytest.raises(ValueError, match="read-only"):
        schedule.orders[0][0] = 1


@given(schedules())
def test_flat_joins_the_orders_in_place(schedule):
    codes, offsets = schedule.flat()
    parts = [codes[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    assert parts == [order.tolist() for order in schedule.orders]


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(1, 1), (4, 8), (4, 2), (5, 5)])
def test_a_schedule_from_arrays_is_the_one_from_ops(num_ranks, num_microbatches):
    size = (num_ranks, num_microbatches)
    assert scale.zb_h1(*size) == build("zb-h1", *size)


@pytest.mark.parametrize("code", [-1, 14])
def test_a_code_of_no_op_is_refused(code):
    message = f"mine: rank 1: op codes go from {min(1, code)} to {max(1, code)}, but .* only 0..13"
    with pytest.raises(ScheduleError, match=message):
        Schedule("mine", linear(2), 1, (np.array([0]), np.array([1, code])))


@pytest.mark.parametrize("op", [F(2, 0), F(-1, 0), F(0, 3), F(0, -1)])
def test_an_op_that_does_not_exist_is_refused(op):
    with pytest.raises(ScheduleError, match=r"mine: rank 1: .* does not exist: there are stages"):
        Schedule.from_ops("mine", linear(2), 3, [[], [op]])


def test_every_rank_needs_an_order():
    with pytest.raises(ScheduleError, match="mine: 1 orders for 2 ranks: give one order for each"):
        Schedule.from_ops("mine", linear(2), 1, [[F(0, 0)]])
