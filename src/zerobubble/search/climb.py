"""How are the numbers of a template tuned? A seeded hill climb over a small pool."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from zerobubble.search.template import Template

_POOL_SIZE = 6
_SAME = 1e-9
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
_NAMES = np.array(list(_WEIGHTS))
_SHARES = np.array(list(_WEIGHTS.values())) / sum(_WEIGHTS.values())


Scored = tuple[float, int, Template]


class Pool:
    """The best few templates so far, each with its value and the number of its try."""

    def __init__(self, scored: list[Scored]) -> None:
        self.entries = sorted(scored, key=lambda entry: entry[:2])[:_POOL_SIZE]

    @property
    def templates(self) -> list[Template]:
        """The templates, best first."""
        return [template for _, _, template in self.entries]

    def replace(self, index: int, entry: Scored) -> None:
        """Take an entry in for one that is not better, unless its value is there already."""
        value, old = entry[0], self.entries[index][0]
        if value > old * (1 + _SAME):
            return
        twins = [
            other
            for other, (its, _, _) in enumerate(self.entries)
            if other != index and abs(its - value) <= _SAME * value
        ]
        self.entries[twins[0] if twins and value < old * (1 - _SAME) else index] = entry
        self.entries.sort(key=lambda entry: entry[:2])


def climb(
    pool: Pool, value_of: Callable[[Template], float], num_tries: int, seed: int, num_passes: int
) -> Iterator[float]:
    """Change the templates of a pool and keep what is not worse; yield each value tried."""
    generator = np.random.default_rng(seed)
    for number in range(num_tries):
        index = min(len(pool.entries) - 1, int(generator.geometric(0.35)) - 1)
        template = mutate(pool.entries[index][2], generator, num_passes)
        if generator.random() < 0.15:
            other = pool.entries[int(generator.integers(len(pool.entries)))][2]
            template = cross(template, other, generator)
        value = value_of(template)
        pool.replace(index, (value, number, template))
        yield value


def mutate(template: Template, generator: np.random.Generator, num_passes: int) -> Template:
    """Change one to three numbers of a template."""
    for name in generator.choice(_NAMES, size=generator.integers(1, 4), p=_SHARES):
        changed: dict[str, Any] = {name: _changed(str(name), template, generator, num_passes)}
        if name == "warm_shape":
            changed["warm_extra"] = float(generator.integers(0, 3))
        template = replace(template, **changed)
    return template


def _changed(
    name: str, template: Template, generator: np.random.Generator, num_passes: int
) -> float | tuple[float, ...]:
    value = getattr(template, name)
    if name in _CHOICES:
        return float(generator.choice(_CHOICES[name]))
    if not isinstance(value, tuple):
        return _stepped(name, value, generator)
    values = list(value or (0.0,) * num_passes) if name == "extra" else list(value)
    if values:
        index = int(generator.integers(len(values)))
        is_hop = name.startswith("hops")
        change = _new_hop if is_hop else _stepped
        values[index] = change(name, values[index], generator)
    return tuple(values)


def _stepped(name: str, value: float, generator: np.random.Generator) -> float:
    width, low, high = _STEPS[name]
    return float(min(high, max(low, value + generator.normal() * width)))


def _new_hop(name: str, value: float, generator: np.random.Generator) -> float:
    if generator.random() < 0.3:
        return float(generator.choice([0.0, 1.0, 1.5, 2.0, 3.0, -1.0]))
    low, width = (0.0, 0.5) if value >= 0 else (-9.0, 0.05)
    return float(max(low, min(4.0, value + generator.normal() * width)))


def cross(one: Template, other: Template, generator: np.random.Generator) -> Template:
    """Take each number from one of two templates."""
    taken = {f.name: getattr(other, f.name) for f in fields(one) if generator.random() < 0.5}
    return replace(one, **taken)
