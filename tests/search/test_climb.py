"""Does a climb walk as it should, and do changes give rules that can be used?"""

from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.test_listing import problems
from zerobubble.costs import Costs
from zerobubble.ir import wave
from zerobubble.search.finds import Finds, _Climb
from zerobubble.search.orders.listing import list_ops
from zerobubble.search.problem import Problem
from zerobubble.search.rules.climb import Mutation, climb
from zerobubble.search.rules.shape import Reshaping, Shape
from zerobubble.search.rules.template import num_passes, seeds
from zerobubble.verify import verify


def walk(seed, num_tries=400):
    """Climb on whole numbers towards 7, whose value is 1."""
    step = lambda number, generator: number + int(generator.integers(-1, 2))  # noqa: E731
    value_of = lambda number, worst: 1.0 + abs(number - 7)  # noqa: E731
    return list(climb(0, step, value_of, 1.0, num_tries, seed))


def test_a_climb_reaches_the_top_and_is_the_same_each_time():
    assert min(walk(0)) == (1.0, 7)
    assert walk(0) == walk(0) != walk(1)


def test_a_climb_takes_steps_down_at_first_only():
    values = [value for value, _ in walk(3)]
    assert max(values[-50:]) <= 2.0


def test_what_is_above_the_threshold_is_not_taken():
    tried = climb(0, lambda n, _: n + 1, lambda n, worst: np.inf if n else 1.0, 0.0, 5, 0)
    assert [candidate for _, candidate in tried] == [1] * 5


@given(st.data(), st.integers(0, 2**31))
def test_changed_rules_still_give_whole_schedules(data, seed):
    problem, generator = data.draw(problems()), np.random.default_rng(seed)
    count = num_passes(problem.placement)
    templates = list(seeds(count))
    template = templates[int(generator.integers(len(templates)))]
    change = Mutation(templates[:5], count)
    for _ in range(5):
        template = change(template, generator)
    shape = Shape.of(template.preferences(problem, 0.0, None), problem)
    reshape = Reshaping(problem)
    for _ in range(5):
        shape = reshape(shape, generator)
    for rule in (template, shape):
        found = list_ops(problem, rule.preferences(problem, 0.0, None))
        verify(found.timeline().schedule, problem.costs, problem.limits)


def test_the_shape_of_a_template_leads_to_the_same_order():
    problem = Problem(Costs.of_ranks(wave(4, 2), 1.0, 1.2, 0.7, 0.1, 0.4), wave(4, 2), 8, 3.0)
    for template in list(seeds(2))[:40]:
        preferences = template.preferences(problem, 30.0, 33.0)
        again = Shape.of(preferences, problem).preferences(problem, 0.0, None)
        np.testing.assert_array_equal(
            list_ops(problem, preferences).codes, list_ops(problem, again).codes
        )


def test_climbs_side_by_side_find_what_each_finds_alone():
    problem = Problem(Costs.of_ranks(wave(4, 2), 1.0, 1.2, 0.7, 0.1, 0.4), wave(4, 2), 8, 3.0)
    templates = list(seeds(2))[:3]
    together, change = Finds(problem), Mutation(templates, 2)
    found = together.climb(templates, change, 3 * 40_000)
    alone = [_Climb(problem, together.certificate, None, seed, False) for seed in range(3)]
    of_each = [
        each.run(template, change, 40_000, Event())
        for each, template in zip(alone, templates, strict=True)
    ]
    assert [one.value for one in found] == [last.value for [last] in of_each]
    # What is better by no more than rounding is not kept.
    assert together.value == pytest.approx(min(each.value for each in alone), rel=1e-12)
    assert together.num_tried == sum(each.num_tried for each in alone)
    assert [one.value for one in together.tries] == [t.value for e in alone for t in e.tries]
