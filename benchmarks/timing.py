"""How are two ways to do the same thing compared on a noisy machine?

All ways run once in every round, so that a slow moment of the machine meets all of them, and a
ratio is the median of the ratios within the rounds. A number is given with its quartiles.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rounds = NDArray[np.float64]


class Spread(NamedTuple):
    """Median and quartiles of a number measured in every round."""

    median: float
    low: float
    high: float

    def text(self, digits: int, unit: str = "") -> str:
        """Write the median with the quartiles behind it.

        >>> Spread(1.234, 1.2, 1.3).text(2)
        '1.23 (1.20 .. 1.30)'
        """
        median, low, high = (f"{value:.{digits}f}" for value in self)
        return f"{median}{unit} ({low} .. {high})"


def spread(values: ArrayLike) -> Spread:
    """Take the median and the quartiles of the values of all rounds."""
    low, median, high = np.quantile(np.asarray(values, dtype=np.float64), [0.25, 0.5, 0.75])
    return Spread(float(median), float(low), float(high))


def alternate(
    ways: Mapping[str, Callable[[], Sequence[float]]], num_rounds: int, num_warm_up: int = 2
) -> dict[str, Rounds]:
    """Run all ways in turn, and again; every way returns the seconds of its phases.

    Returns:
        For every way an array of seconds of shape (num_rounds, number of phases). Rounds run
        forwards and backwards in turn, so that no way always follows the same other one.
    """
    seconds: dict[str, list[Sequence[float]]] = {name: [] for name in ways}
    for number in range(num_warm_up + num_rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            phases = ways[name]()
            if number >= num_warm_up:
                seconds[name].append(phases)
    return {name: np.array(rounds) for name, rounds in seconds.items()}


def time_phases(
    *phases: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Run phases one after the other; return the seconds of each."""
    marks = [clock()]
    for phase in phases:
        phase()
        marks.append(clock())
    return [end - start for start, end in pairwise(marks)]


def print_table(title: str, lines: Iterable[tuple[str, str]]) -> None:
    """Print lines of a description and a value under a title, values in one column."""
    lines = list(lines)
    width = max(len(what) for what, _ in lines)
    print(title)
    for what, value in lines:
        print(f"  {what:<{width}}  {value}")
    print(flush=True)
