"""Do hot functions give the same results compiled and in Python, and is each way taken in turn?"""

from importlib.util import find_spec
from math import inf
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, lists_of_ops, schedules, with_orders
from zerobubble import jit
from zerobubble.errors import ScheduleError
from zerobubble.graph import run_order
from zerobubble.jit import hot
from zerobubble.simulate import simulate
from zerobubble.verify import violations

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


def both_ways(function, *arguments):
    """Call a function with its hot loops compiled and in Python."""
    results = []
    for smallest in (0, inf):
        with patch.object(jit, "SMALLEST_COMPILED_WORK", smallest):
            results.append(function(*arguments))
    return results


def outcome(schedule):
    """Give the order of all ops, or why there is none."""
    try:
        return run_order(schedule).tolist()
    except ScheduleError as error:
        return str(error)


@st.composite
def orders_with_a_flaw(draw):
    """Any valid schedule in which one op is moved, missing or runs twice."""
    schedule = draw(schedules())
    orders = lists_of_ops(schedule)
    rank = draw(st.sampled_from([r for r, ops in enumerate(orders) if ops]))
    op = orders[rank].pop(draw(st.integers(0, len(orders[rank]) - 1)))
    for _ in range(draw(st.integers(0, 2))):
        orders[rank].insert(draw(st.integers(0, len(orders[rank]))), op)
    return with_orders(schedule, orders)


@needs_numba
@given(schedules(), st.data())
def test_a_timeline_is_the_same_both_ways(schedule, data):
    compiled, python = both_ways(simulate, schedule, data.draw(costs_for(schedule.num_stages)))
    assert all(map(np.array_equal, compiled.start, python.start))
    assert all(map(np.array_equal, compiled.end, python.end))
    assert compiled.critical_path() == python.critical_path()


@needs_numba
@given(st.one_of(schedules(), orders_with_a_flaw()))
def test_orders_and_explanations_are_the_same_both_ways(schedule):
    for function in (outcome, violations):
        compiled, python = both_ways(function, schedule)
        assert compiled == python


@hot
def running_sums(values, sums):
    """Fill the sums and return the last one."""
    total = 0
    for i in range(len(values)):
        total += values[i]
        sums[i] = total
    return total


def read_only(values):
    array = np.array(values)
    array.setflags(write=False)
    return array


def sum_up(values):
    sums = np.zeros(len(values), dtype=np.int64)
    return running_sums(values, sums, work=len(values)), sums.tolist()


@needs_numba
@pytest.mark.parametrize("values", [np.array([3, 4]), read_only([3, 4]), np.array([], dtype=int)])
def test_arrays_are_filled_both_ways(values):
    compiled, python = both_ways(sum_up, values)
    assert compiled == python == (sum(values), np.cumsum(values).tolist())


@hot
def double(values):
    for i in range(len(values)):
        values[i] *= 2


@hot
def quadruple(values):
    double(values)
    double(values)


def test_hot_functions_hand_their_lists_on_to_each_other():
    values = np.array([3, 4])
    with patch.object(jit, "_as_lists", wraps=jit._as_lists) as convert:
        quadruple(values)
    assert values.tolist() == [12, 16]
    assert convert.call_count == 1


@needs_numba
def test_hot_functions_fill_the_same_arrays_compiled():
    values = np.array([3, 4])
    quadruple(values, work=10**9)
    assert values.tolist() == [12, 16]


@needs_numba
def test_a_function_is_compiled_where_no_machine_code_can_be_kept():
    names = {}
    exec("def fill(values):\n    values[0] = 7", names)  # in no file
    values = np.zeros(1)
    hot(names["fill"]).compiled(values)
    assert values.tolist() == [7]


@pytest.mark.parametrize(
    ("work", "is_installed", "way"),
    [(9, True, "python"), (10, True, "compiled"), (10, False, "python")],
)
def test_only_much_work_is_compiled_and_only_with_numba(work, is_installed, way):
    function = hot(lambda: "python")
    function.compiled = lambda: "compiled"
    with (
        patch.object(jit, "SMALLEST_COMPILED_WORK", 10),
        patch.object(jit, "_can_compile", lambda: is_installed),
    ):
        assert function(work=work) == way
