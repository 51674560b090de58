"""Are patterns what they say they are: a rhythm that the ranks can keep, within the memory?"""

import sys
from functools import cache

import numpy as np
import pytest

from zerobubble.costs import Costs
from zerobubble.ir import linear, looped, wave
from zerobubble.search.effort import Effort
from zerobubble.search.orders.instance import instance_of
from zerobubble.search.problem import Problem
from zerobubble.search.rules.pattern import MOST_STAGES, find_pattern
from zerobubble.search.size import Size
from zerobubble.verify import verify

pytest.importorskip("ortools")
WORK = 2


def problem_of(placement, memory, costs=(1, 1.2, 0.7, 0.1, 0.5)):
    return Problem(Costs.of_ranks(placement, *costs), placement, 12, memory)


PROBLEMS = [
    problem_of(linear(3), 3),
    problem_of(linear(3), 2),
    problem_of(wave(3, 2), 2.5),
    problem_of(looped(2, 2), 2),
    problem_of(linear(4), np.inf),
]


@cache
def pattern_of(problem):
    return find_pattern(problem, WORK)


def unrolled(pattern, problem, count=40):
    """Give starts and ends of F, B and W by stage and microbatch."""
    start = pattern.starts[:, :, None] + pattern.period * np.arange(count)
    return start, start + problem.costs.durations()[:3, :, None]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_pattern_that_repeats_follows_the_rules(problem):
    pattern = pattern_of(problem)
    start, end = unrolled(pattern, problem)
    tick = pattern.period / 100  # times are rounded to ticks
    travel = instance_of(problem).travel[:-1, None]
    assert (start[0, 1:] >= end[0, :-1] + travel - tick).all()
    assert (start[1, :-1] >= end[1, 1:] + travel - tick).all()
    assert (start[1, -1] >= end[0, -1] - tick).all()
    assert (start[2] >= end[1] - tick).all()
    for rank in range(problem.placement.num_ranks):
        stages = problem.placement.stages_of(rank)
        begins, ends = (each[:, stages].reshape(-1) for each in (start, end))
        order = np.argsort(begins, kind="stable")
        assert (begins[order][1:] >= ends[order][:-1] - tick).all()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_its_peak_is_what_ranks_hold_and_within_the_limit(problem):
    pattern = pattern_of(problem)
    start, end = unrolled(pattern, problem)
    costs, peaks = problem.costs, pattern.peaks(problem)
    kept = costs.activation_kept
    for rank in range(problem.placement.num_ranks):
        stages = problem.placement.stages_of(rank)
        held = [
            sum(
                costs.activation[s] * (start[0, s] <= now + 1e-9).sum()
                - (costs.activation[s] - kept[s]) * (end[1, s] <= now + 1e-9).sum()
                - kept[s] * (end[2, s] <= now + 1e-9).sum()
                for s in stages
            )
            for now in start[0, stages, :30].reshape(-1)
        ]
        assert peaks[rank] == pytest.approx(max(held))
        assert peaks[rank] <= problem.limits[rank] * (1 + 1 / 16)  # sizes are rounded to 64ths


def test_at_the_memory_of_1f1b_no_rank_waits_in_the_rhythm_and_below_it_does():
    """ZB-H1 has a rhythm without idle time. Rank 0 holds each activation for 2p ops and its W: with
    room for two, every two microbatches take no less time than that.
    """
    equal = (1, 1, 1, 0, 1)
    assert find_pattern(problem_of(linear(4), 4, equal), WORK).period == pytest.approx(3)
    assert find_pattern(problem_of(linear(4), 2.5, equal), WORK).period >= (2 * 4 + 1) / 2


def test_no_pattern_is_found_where_none_can_be(monkeypatch):
    assert find_pattern(problem_of(linear(3), 1), WORK) is None, "one microbatch at a time"
    many = problem_of(linear(MOST_STAGES + 1), np.inf)
    assert find_pattern(many, WORK) is None
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert find_pattern(PROBLEMS[0], WORK) is None


def test_a_thorough_search_has_its_rhythm_among_its_orders():
    """With nothing else to start from, what is found is an order of the pattern, justified."""
    problem = PROBLEMS[3]
    size, effort = Size(problem), Effort(0, 0, 0, 0, 0, 0, patterns=WORK)
    size.polish(effort, 0, 0, None)
    shapes = pattern_of(problem).shapes(problem)
    assert size.value <= min(Size(problem).must_list(shape).value for shape in shapes)
    verify(size.best.timeline().schedule, problem.costs, problem.limits)
