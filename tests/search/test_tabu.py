"""Is what a move reverses tabu for its tenure, unless it leads to a new best order?"""

import pytest

from zerobubble.costs import Costs
from zerobubble.ir import B, F, Schedule, W, linear
from zerobubble.search.moves.paths import links_of, move, paths_of
from zerobubble.search.moves.tabu import begin, forbid_return, is_tabu, walk_on
from zerobubble.search.orders.arrangement import arrange
from zerobubble.search.problem import Problem

MOVES = 0
ALWAYS = 10**9


@pytest.fixture
def start():
    """W of microbatch 0 on rank 1 holds up F and B of microbatch 1: 9 long, and 8 without."""
    orders = [
        [F(0, 0), F(0, 1), B(0, 0), B(0, 1), W(0, 0), W(0, 1)],
        [F(1, 0), B(1, 0), W(1, 0), F(1, 1), B(1, 1), W(1, 1)],
    ]
    problem = Problem(Costs.uniform(2), linear(2), 2)
    found = arrange(problem, Schedule.from_ops("", linear(2), 2, orders).flat()[0])
    links = links_of(problem)
    paths = paths_of(found, links)
    return links, paths, begin(links, paths)


@pytest.mark.parametrize(("source", "target"), [(8, 10), (10, 8)])
def test_the_way_back_is_tabu_from_ten_to_twenty_moves(start, source, target):
    links, paths, walk = start
    if source > target:
        move(links, paths, target, source)
    between = (source + target) // 2
    assert not is_tabu(paths, walk, source, target)
    forbid_return(paths, walk, source, target)
    move(links, paths, source, target)
    for moves, expected in ((0, True), (9, True), (20, False)):
        walk.counts[MOVES] = moves
        assert is_tabu(paths, walk, target, source) == expected
        assert is_tabu(paths, walk, target, between) == expected
    walk.counts[MOVES] = 0
    assert not is_tabu(paths, walk, between, source), "the others keep their order"


def test_a_tabu_move_is_made_if_it_leads_to_a_new_best(start):
    links, paths, walk = start
    walk.tabu[:] = ALWAYS
    assert walk.values.tolist() == [9, 9]
    walk_on(links, paths, walk, 1, 0.0)
    assert walk.values.tolist() == [8, 8]


def test_a_tabu_move_is_not_made_if_it_is_only_as_good_as_the_best(start):
    links, paths, walk = start
    walk.tabu[:] = ALWAYS
    walk.values[1] = 8
    walk_on(links, paths, walk, 1, 0.0)
    assert walk.values.tolist() == [9, 8]
    walk.tabu[:] = 0
    walk_on(links, paths, walk, 2, 0.0)
    assert walk.values.tolist() == [8, 8]
    assert walk.tabu.any(), "the way back is"
