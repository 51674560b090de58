"""With which rules does a search begin?

The first two dozen were chosen by how often they were the best, or close to it, for the costs of
the papers, four placements and memory from half to twice that of 1F1B; then all others follow.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, zip_longest

from zerobubble.search.problem import Problem
from zerobubble.search.rules.portfolio import FixedRule, Rule, fixed_rules
from zerobubble.search.rules.template import Template, num_passes, seeds, with_warm_up


def start_rules(problem: Problem) -> Iterator[Rule]:
    """Yield the rules that are worth a try on any problem, the most promising first."""
    count = num_passes(problem.placement)
    yield from _in_turn(_promising_templates(count), _promising_rules())
    yield from _in_turn(with_warm_up(seeds(count)), fixed_rules(problem))


def _in_turn(*sources: Iterator[Rule]) -> Iterator[Rule]:
    return filter(None, chain.from_iterable(zip_longest(*sources)))


def _promising_templates(count: int) -> Iterator[Template]:
    """Yield templates of so many passes: even hops, those of V-Half, and what fills a period."""
    alternating = tuple(2.0 - number % 2 for number in range(count))
    reverse = tuple(1.0 + number % 2 for number in range(count))
    even, ones, none = (2.0,) * count, (1.0,) * count, (0.0,) * count
    gaps = (1.0,) * (count - 1)
    tight = Template(even, even, none[1:], 0.0, none[1:], patience=0.5)
    loose = replace(tight, gaps_f=gaps, gaps_b=gaps, extra=ones)
    yield replace(loose, hops_f=alternating, hops_b=reverse)
    yield tight
    yield replace(loose, hops_f=ones)
    yield from _filling(tight, count)
    yield loose
    yield replace(loose, warm_shape=1.5)
    yield replace(tight, hops_f=none, hops_b=none, extra=ones, warm_shape=1.5)
    yield replace(tight, hops_f=none, hops_b=none, extra=(0.5,) * count, forward_bias=-1.0)
    yield replace(loose, hops_f=ones, warm_shape=1.5)


def _filling(tight: Template, count: int) -> Iterator[Template]:
    """Yield templates in which a hop down and a hop up fill a stage's share of the period."""
    down = tuple(float(number % 2) - 1.0 for number in range(count))
    up = tuple(-float(number % 2) for number in range(count))
    for gap, scarcity in ((2.0, 0.5), (2.0, 1.0), (1.0, 0.5)):
        wide = replace(tight, gap_turn=3.0, gaps_b=(gap,) * (count - 1), scarcity=scarcity)
        yield replace(wide, hops_f=down, hops_b=up, warm_shape=1.5)
        yield replace(wide, hops_f=up, hops_b=down)


def _promising_rules() -> Iterator[FixedRule]:
    yield FixedRule("forward", "forward", deeper_first=True, patience=0.5)
    yield FixedRule("earliest", "period", patience=0.5, makes_room=1.0)
    yield FixedRule("backward", "none", deeper_first=True)
    yield FixedRule("forward", "both", patience=1.0)
    yield FixedRule("forward", "forward", patience=0.5, makes_room=1.0)
    yield FixedRule("forward", "period", patience=0.5)
    yield FixedRule("forward", "middle", deeper_first=True, patience=0.5)
    yield FixedRule("backward", "period", patience=0.5)
    yield FixedRule("earliest", "period", patience=0.5)
    yield FixedRule("forward", "both", deeper_first=True, patience=0.5)
    yield FixedRule("earliest", "none")
