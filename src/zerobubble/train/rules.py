"""Which values may a setting have?"""

import math
from collections.abc import Callable, Sequence

from zerobubble.errors import UsageError

_RULES: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "above 0": lambda value: value > 0,
    "between 0 and 1": lambda value: 0 < value < 1,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "at least 0 and below 2**63": lambda value: 0 <= value < 2**63,
}


def require(section: object, rule: str, *names: str) -> None:
    """Raise a ``UsageError`` if one of the section's numbers breaks the rule or is not finite."""
    for name in names:
        value = getattr(section, name)
        if not (_RULES[rule](value) and value < math.inf):
            raise UsageError(f"{name} must be {rule}, not {value}")


def require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise a ``UsageError`` if the value is not a known one."""
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def read_range(name: str, value: int | str) -> range | None:
    """Read a range of numbers, both ends included; a plain number is none.

    Raises:
        UsageError: it is neither.

    >>> read_range("trace_steps", "5-7"), read_range("trace_steps", 3)
    (range(5, 8), None)
    """
    if isinstance(value, int):
        return None
    first, dash, last = value.partition("-")
    if dash and all(end.isascii() and end.isdecimal() and len(end) < 10 for end in (first, last)):
        found = range(int(first), int(last) + 1)
        if found and found.start >= 1:
            return found
    raise UsageError(f"{name} must be a number, or a range from 1 on like 5-7, not {value!r}")


def nearest_multiples(value: int, step: int) -> str:
    """Name the positive multiples of ``step`` on both sides of ``value``, which is none.

    >>> nearest_multiples(10, 4), nearest_multiples(3, 4)
    ('8 or 12', '4')
    """
    below = value - value % step
    return f"{below} or {below + step}" if below else str(step)
