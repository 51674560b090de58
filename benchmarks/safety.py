"""Does anything that the search builds deadlock, exceed a limit, or beat its lower bound?

Random instances tell. Their schedules come from random rules of preference, justification and
tabu search, from the rounds of a V, and for one in a hundred from the whole search. Each one is
checked by ``verify`` and timed by ``simulate``.

A fault is printed with its instance, to be pasted behind
``from math import inf; from benchmarks.safety import Case, faults_of``.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args

import numpy as np
import tyro

from benchmarks.instances import Case, Random, draw_case
from zerobubble.ir import Schedule
from zerobubble.schedules.v_rounds import v_rounds
from zerobubble.search import lower_bound, search
from zerobubble.search.moves.tabu import tabu_searched
from zerobubble.search.orders.arrangement import Arrangement
from zerobubble.search.orders.justify import justified
from zerobubble.search.orders.listing import Preferences, keys_of, list_ops
from zerobubble.search.problem import Problem
from zerobubble.search.rules.climb import Mutation
from zerobubble.search.rules.portfolio import Cap, First, FixedRule, Rule
from zerobubble.search.rules.shape import Reshaping, Shape
from zerobubble.search.rules.template import Template, num_passes, seeds, with_warm_up
from zerobubble.simulate import simulate
from zerobubble.verify import verify

_ROUNDING = 1e-9

# What a way yields: a schedule, and the value that it claims for it, if any.
Built = tuple[Schedule, float | None]


def random_preferences(problem: Problem, random: Random) -> Preferences:
    """Draw keys, caps and budgets that mean nothing."""
    num_stages, num_ranks = problem.placement.num_stages, problem.placement.num_ranks
    unit = problem.period
    keys = random.normal(size=(3, num_stages)) * unit * random.choice([1, 10])
    return Preferences(
        keys_of(problem, keys, unit * random.choice([0.0, 1.0, 5.0])),
        random.integers(1, 9, num_stages),
        random.integers(1, 9, num_stages),
        float(random.random()),
        float(random.choice([0.0, np.inf])),
        float(random.integers(2)),
        random.uniform(-1, 5, num_ranks) * unit,
    )


def preferences_of(rule: Rule, problem: Problem, random: Random) -> Preferences:
    """Ask a rule for its preferences, with any guess of what is possible."""
    bound = float(problem.loads.max())
    best = bound * float(random.uniform(1, 2)) if random.random() < 0.5 else None
    return rule.preferences(problem, bound, best)


def fixed_rule(random: Random) -> Rule:
    """Draw a fixed rule, also with a patience and a budget that none of the usual ones has."""
    return FixedRule(
        str(random.choice(get_args(First))),
        str(random.choice(get_args(Cap))),
        bool(random.integers(2)),
        float(random.random()),
        float(random.integers(2)),
        float(random.uniform(-0.5, 1.5)) if random.random() < 0.5 else None,
    )


@cache
def _templates(passes: int) -> list[Template]:
    return list(with_warm_up(seeds(passes)))


def template(problem: Problem, random: Random) -> Rule:
    """Pick a template to start from, and change it as climbing does."""
    passes = num_passes(problem.placement)
    known = _templates(passes)
    picked = known[random.integers(len(known))]
    change = Mutation(known, passes)
    for _ in range(random.integers(0, 9)):
        picked = change(picked, random)
    return picked


def shape(problem: Problem, random: Random) -> Rule:
    """Take what a template leads to, and change it stage by stage."""
    preferences = template(problem, random).preferences(problem, float(problem.loads.max()), None)
    found, reshaping = Shape.of(preferences, problem), Reshaping(problem)
    for _ in range(random.integers(0, 9)):
        found = reshaping(found, random)
    return found


def preferred(problem: Problem, random: Random) -> Preferences:
    """Draw preferences in one of four ways."""
    way = random.integers(4)
    if way == 0:
        return random_preferences(problem, random)
    rule = fixed_rule(random) if way == 1 else (template, shape)[way - 2](problem, random)
    return preferences_of(rule, problem, random)


def listed(problem: Problem, random: Random) -> Arrangement:
    """List ops under any preferences."""
    return list_ops(problem, preferred(problem, random))


def _listed(problem: Problem, random: Random) -> Iterator[Built]:
    preferences = preferred(problem, random)
    found = list_ops(problem, preferences)
    yield _built(found)
    again = list_ops(problem, preferences, worst=found.value)
    if again is not None:
        assert np.array_equal(again.codes, found.codes), "the same preferences give the same order"


def _justified(problem: Problem, random: Random) -> Iterator[Built]:
    patiences = random.choice([0.0, 0.5, 1.0], random.integers(1, 3)).tolist()
    for found in justified(listed(problem, random), int(random.integers(1, 4)), patiences, 0.0):
        yield _built(found)


def _moved(problem: Problem, random: Random) -> Iterator[Built]:
    start = listed(problem, random)
    [found] = tabu_searched([start], int(random.integers(1, 300)), 0.0)
    assert found.value <= start.value * (1 + _ROUNDING), "the best order is kept"
    yield _built(found)


def _built(found: Arrangement) -> Built:
    return found.timeline().schedule, found.value


def _rounds_of_a_v(problem: Problem, random: Random) -> Iterator[Built]:
    rounds = v_rounds(
        problem.costs,
        problem.num_microbatches,
        problem.limits,
        push_backward=bool(random.integers(2)),
        push_forward=bool(random.integers(2)),
        budget=(None, 0.0, problem.period * random.random())[random.integers(3)],
    )
    yield Schedule("rounds", problem.placement, problem.num_microbatches, rounds.orders), None


def _search(problem: Problem, random: Random) -> Iterator[Built]:
    found = search(
        problem.costs,
        problem.placement.num_ranks,
        problem.num_microbatches,
        problem.limits,
        problem.placement,
        problem.objective,
        "quick",
    )
    yield found.schedule, found.value


WAYS: dict[str, Callable[[Problem, Random], Iterator[Built]]] = {
    "listed": _listed,
    "justified": _justified,
    "moved": _moved,
    "rounds of a V": _rounds_of_a_v,
    "search": _search,
}


def faults_of(case: Case) -> tuple[int, list[str]]:
    """Build the schedules of an instance; give how many were checked, and what is wrong."""
    num_checked, faults = 0, []
    try:
        bound = _bound(case.problem)
        for schedule, claimed in WAYS[case.way](case.problem, np.random.default_rng(case.seed)):
            faults += _faults(case.problem, schedule, claimed, bound)
            num_checked += 1
    except Exception as error:  # whatever fails is told with its instance
        faults.append(f"{type(error).__name__}: {error}")
    return num_checked, faults


def _bound(problem: Problem) -> float:
    size = problem.costs, problem.placement, problem.num_microbatches
    return lower_bound(*size, problem.limits, problem.objective).value


def _faults(
    problem: Problem, schedule: Schedule, claimed: float | None, bound: float
) -> Iterator[str]:
    verify(schedule, problem.costs, problem.limits)
    timeline = simulate(schedule, problem.costs)
    value, rounding = getattr(timeline, problem.objective), _ROUNDING * timeline.makespan
    if claimed is not None and abs(claimed - value) > rounding:
        yield f"{problem.objective} is {value!r}, not {claimed!r} as claimed"
    if value < bound - rounding:
        yield f"{problem.objective} {value!r} is below its bound {bound!r}"


def main(count: int = 100_000, seed: int = 0) -> None:
    """Check random instances, print how many, and exit with status 1 if anything is wrong.

    Args:
        count: how many instances.
        seed: of the draws.
    """
    begin, num_faults = time.perf_counter(), 0
    num_cases, num_schedules = Counter[str](), Counter[str]()
    for number in range(count):
        case = draw_case(number, seed)
        num_checked, faults = faults_of(case)
        num_cases[case.way] += 1
        num_schedules[case.way] += num_checked
        num_faults += len(faults)
        for fault in faults:
            print(f"{fault}\n    faults_of({case!r})", flush=True)
    print(f"{'built by':<16}{'instances':>12}{'schedules':>12}")
    for way in sorted(num_cases):
        print(f"{way:<16}{num_cases[way]:>12,}{num_schedules[way]:>12,}")
    print(
        f"{count:,} instances of seed {seed}, {num_schedules.total():,} schedules: "
        f"{num_faults:,} deadlocks, broken rules, exceeded limits or values below the bound; "
        f"{time.perf_counter() - begin:.0f} s"
    )
    sys.exit(num_faults > 0)


if __name__ == "__main__":
    tyro.cli(main)
