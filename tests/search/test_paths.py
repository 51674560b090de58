"""Are heads and tails the longest paths, however the order has been changed?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_listing import preferences_for, problems
from zerobubble.search.moves.paths import lay_out, links_of, move, paths_of
from zerobubble.search.moves.tabu import begin, choose, estimate, may_move, trace
from zerobubble.search.orders.arrangement import arrange_within_limits
from zerobubble.search.orders.listing import list_ops


@st.composite
def orders(draw):
    """Draw an order with its links and paths."""
    problem = draw(problems())
    start = list_ops(problem, draw(preferences_for(problem)))
    links = links_of(problem)
    paths = paths_of(start, links)
    lay_out(links, paths)
    return start, links, paths


@settings(max_examples=100)
@given(orders())
def test_heads_are_starts_and_the_longest_path_is_the_objective(drawn):
    start, _, paths = drawn
    np.testing.assert_allclose(paths.heads, start.start, rtol=1e-8, atol=1e-8)
    longest = (paths.heads + paths.tails).max()
    assert longest == paths.tails[paths.line[0]] == pytest.approx(start.value)


@settings(max_examples=150)
@given(orders(), st.data())
def test_after_moves_all_is_as_if_worked_out_anew(drawn, data):
    start, links, paths = drawn
    num_ops = len(paths.order)
    for _ in range(5):
        source = data.draw(st.integers(0, num_ops - 1))
        rank = links.ranks[links.rows[paths.order[source]]]
        target = data.draw(st.integers(links.offsets[rank], links.offsets[rank + 1] - 1))
        if source == target or not may_move(links, paths, source, target):
            continue
        value = move(links, paths, source, target)
        assert not paths.marks.any()
        assert not paths.dirty.any()
        assert sorted(paths.line.tolist()) == list(range(num_ops))
        found = arrange_within_limits(start.problem, paths.order, "")
        assert found is not None, "a move keeps to the rules and the limits"
        assert value == pytest.approx(found.value)
        anew = paths_of(found, links)
        lay_out(links, anew)
        for name in ("places", "heads", "tails"):
            np.testing.assert_array_equal(getattr(paths, name), getattr(anew, name))
        np.testing.assert_allclose(paths.memory, anew.memory, atol=1e-9)


@settings(max_examples=100)
@given(orders(), st.data())
def test_an_estimate_is_the_longest_path_through_what_was_moved(drawn, data):
    """It is exact for two neighbours, of which neither reads what the other one leads to."""
    _, links, paths = drawn
    source = data.draw(st.integers(1, len(paths.order) - 1))
    if links.ranks[links.rows[paths.order[source]]] != links.ranks[
        links.rows[paths.order[source - 1]]
    ] or not may_move(links, paths, source - 1, source):
        return
    pair = paths.order[[source - 1, source]].tolist()
    value = estimate(links, paths, np.zeros(len(paths.order)), source - 1, source, np.inf)
    move(links, paths, source - 1, source)
    assert value == max(paths.heads[code] + paths.tails[code] for code in pair)


@settings(max_examples=50)
@given(orders())
def test_a_critical_path_is_as_long_as_the_objective(drawn):
    start, links, paths = drawn
    walk = begin(links, paths)
    path = walk.path[: trace(links, paths, walk)]
    assert paths.heads[path] + paths.tails[path] == pytest.approx(start.value)
    assert path[0] == paths.line[0]
    source, target = choose(links, paths, walk, len(path))
    assert source < 0 or may_move(links, paths, source, target)
