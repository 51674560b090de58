"""Which values may a setting have?"""

import math
import re
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

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_SIZE = re.compile(rf"([0-9]*\.?[0-9]+)\s*({'|'.join(_UNITS)})")


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


def read_size(what: str, text: str) -> float:
    """Read a number of bytes with a unit, above 0 and below 2**63; ``what`` begins the error.

    Raises:
        UsageError: it is none.

    >>> read_size("--memory", "1.5KiB")
    1536.0
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"{what}: write bytes with a unit, as in 40GiB; the units are {', '.join(_UNITS)}"
        )
    size = float(match[1]) * _UNITS[match[2]]
    if size >= 2**63:
        raise UsageError(f"{what}: more bytes than 64 bits can count: write less than 2**33 GiB")
    return size


def nearest_multiples(value: int, step: int) -> str:
    """Name the positive multiples of ``step`` on both sides of ``value``, which is none.

    >>> nearest_multiples(10, 4), nearest_multiples(3, 4)
    ('8 or 12', '4')
    """
    below = value - value % step
    return f"{below} or {below + step}" if below else str(step)
