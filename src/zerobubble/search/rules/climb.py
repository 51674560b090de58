"""How are the numbers of a template tuned? A seeded climb that also takes steps down."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from zerobubble.search.rules.template import Template

T = TypeVar("T")

# What a step down may cost at the start, as a share of the idle time; it falls to nothing.
_TEMPERATURE = 0.05
_CROSSED = 0.1
# How often each number is changed, and from where or how far a new value is drawn.
_WEIGHTS = {
    "hops_f": 15,
    "hops_b": 15,
    "gaps_f": 8,
    "gap_turn": 5,
    "gaps_b": 8,
    "scarcity": 6,
    "extra": 13,
    "budget_share": 11,
    "patience": 5,
    "makes_room": 3,
    "weight_delay": 3,
    "forward_bias": 2,
    "warm_shape": 6,
}
_CHOICES: dict[str, tuple[float, ...]] = {
    "budget_share": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "patience": (0.0, 0.25, 0.5, 0.75, 1.0),
    "makes_room": (0.0, 1.0),
    "weight_delay": (0.0, 0.2, 0.5, 1.0, 2.0),
    "forward_bias": (0.0, 0.0, -1.0),
    "warm_shape": (0.0, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0),
}
_STEPS = {
    "gaps_f": (1.5, 0.0, np.inf),
    "gap_turn": (1.0, 0.0, np.inf),
    "gaps_b": (1.5, 0.0, np.inf),
    "scarcity": (0.2, 0.0, 1.3),
    "extra": (0.8, -2.0, 6.0),
}
_NAMES = [name for name, weight in _WEIGHTS.items() for _ in range(weight)]


def climb(
    start: T,
    change: Callable[[T, np.random.Generator], T],
    value_of: Callable[[T, float], float],
    load: float,
    num_tries: int,
    seed: int,
) -> Iterator[tuple[float, T]]:
    """Walk from one candidate to the next, at first also to somewhat worse ones; yield all tried.

    Args:
        start: the first candidate.
        change: gives a neighbour of a candidate.
        value_of: gives the value of a candidate, anything larger if it is above a threshold.
        load: the part of a value that no candidate can change.
        num_tries: number of neighbours that are tried.
        seed: of all draws.
    """
    generator = np.random.default_rng(seed)
    current, value = start, value_of(start, np.inf)
    best = value
    for number in range(num_tries):
        heat = _TEMPERATURE * (best - load) * (1 - number / num_tries)
        worst = value - heat * float(np.log(1 - generator.random()))
        candidate = change(current, generator)
        found = value_of(candidate, worst)
        if found <= worst:
            current, value = candidate, found
            best = min(best, value)
        yield found, candidate


class Mutation:
    """Change one to three numbers of a template, and sometimes take some from another."""

    def __init__(self, others: Sequence[Template], num_passes: int) -> None:
        self.others, self.num_passes = others, num_passes

    def __call__(self, template: Template, generator: np.random.Generator) -> Template:
        """Give a neighbour of a template."""
        for number in generator.integers(len(_NAMES), size=int(generator.integers(1, 4))).tolist():
            name = _NAMES[number]
            changed: dict[str, Any] = {name: _changed(name, template, generator, self.num_passes)}
            if name == "warm_shape":
                changed["warm_extra"] = float(generator.integers(0, 3))
            template = replace(template, **changed)
        if generator.random() < _CROSSED:
            other = self.others[int(generator.integers(len(self.others)))]
            template = _cross(template, other, generator)
        return template


def _changed(
    name: str, template: Template, generator: np.random.Generator, num_passes: int
) -> float | tuple[float, ...]:
    value = getattr(template, name)
    if name in _CHOICES:
        return _one_of(_CHOICES[name], generator)
    if not isinstance(value, tuple):
        return _stepped(name, value, generator)
    values = list(value or (0.0,) * num_passes) if name == "extra" else list(value)
    if values:
        index = int(generator.integers(len(values)))
        is_hop = name.startswith("hops")
        change = _new_hop if is_hop else _stepped
        values[index] = change(name, values[index], generator)
    return tuple(values)


def _one_of(choices: tuple[float, ...], generator: np.random.Generator) -> float:
    return choices[int(generator.integers(len(choices)))]


def _stepped(name: str, value: float, generator: np.random.Generator) -> float:
    width, low, high = _STEPS[name]
    return float(min(high, max(low, value + generator.normal() * width)))


def _new_hop(name: str, value: float, generator: np.random.Generator) -> float:
    if generator.random() < 0.3:
        return _one_of((0.0, 1.0, 1.5, 2.0, 3.0, -1.0), generator)
    low, width = (0.0, 0.5) if value >= 0 else (-9.0, 0.05)
    return float(max(low, min(4.0, value + generator.normal() * width)))


def _cross(one: Template, other: Template, generator: np.random.Generator) -> Template:
    """Take each number from one of two templates."""
    taken = {f.name: getattr(other, f.name) for f in fields(one) if generator.random() < 0.5}
    return replace(one, **taken)
