"""Are small copies of a problem what they should be, and do shorter ones fit for splicing?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobubble.costs import Costs
from zerobubble.ir import Placement, linear, looped, wave
from zerobubble.search.problem import Problem
from zerobubble.search.scaling import ladder


def sizes(place, m, memory=np.inf):
    problem = Problem(Costs.uniform(place.num_stages, activation=1), place, m, memory)
    return [(p.placement.num_ranks, p.num_microbatches) for p in ladder(problem)]


@pytest.mark.parametrize(
    ("place", "m", "expected"),
    [
        (linear(8), 24, [(8, 24)]),
        (wave(16, 4), 48, [(8, 24), (16, 48)]),
        (looped(32, 2), 96, [(8, 24), (16, 48), (32, 96)]),
        (wave(8, 2), 64, [(8, 28), (8, 64)]),
        (wave(32, 2), 256, [(8, 24), (16, 48), (32, 100), (32, 256)]),
        (Placement((0, 1, 1, 0, 1)), 24, [(2, 12), (2, 24)]),
        (linear(1), 5, [(1, 5)]),
    ],
)
def test_a_ladder_goes_up_to_the_problem(place, m, expected):
    assert sizes(place, m) == expected


def test_a_copy_keeps_the_shape_and_shrinks_the_memory():
    place = wave(16, 2)
    forward = np.arange(32.0)
    costs = Costs(forward, forward, forward, forward, np.ones(32), np.full(32, 0.5))
    copy, _ = ladder(Problem(costs, place, 48, 20.0))
    assert copy.placement == wave(8, 2)
    assert copy.costs.forward[[0, 7, 8, 15]].tolist() == [0, 15, 16, 31]
    assert copy.limits.tolist() == [10.0] * 8


def test_a_copy_has_room_for_one_microbatch():
    copy, _ = ladder(Problem(Costs.uniform(64), wave(16, 4), 48, 4.0))
    assert copy.limits.tolist() == [4.0] * 8


@given(st.integers(1, 20), st.integers(1, 300))
def test_what_splicing_adds_is_divided_by_any_period(p, m):
    *shorter, last = [count for ranks, count in sizes(linear(p), m) if ranks == p]
    assert last == m
    assert all(0 < count < m and (m - count) % 12 == 0 for count in shorter)
