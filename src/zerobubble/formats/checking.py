"""Is a value of a file of the type and size that its place wants? If not, one line says so."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value

# Whole numbers of files are exact as floats up to here.
MOST = 2**53


def fail(problem: str) -> NoReturn:
    """Refuse a value."""
    raise UsageError(problem)


def with_keys(place: str, values: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Give an object that has exactly these keys.

    Raises:
        UsageError: a key is missing or unknown.
    """
    if missing := [key for key in keys if key not in values]:
        fail(f"{place}: key {missing[0]!r} is missing: the keys are {', '.join(keys)}")
    if unknown := sorted(set(values) - set(keys)):
        fail(f"{place}: unknown key {show_value(unknown[0])}: the keys are {', '.join(keys)}")
    return values


def an_object(place: str, value: Any) -> dict[str, Any]:
    """Give a JSON object; raise a UsageError if it is something else."""
    if not isinstance(value, dict):
        fail(f"{place} must be an object, not {show_value(value)}")
    return value


def a_list(place: str, value: Any) -> list[Any]:
    """Give a list; raise a UsageError if it is something else."""
    if not isinstance(value, list):
        fail(f"{place} must be a list, not {show_value(value)}")
    return value


def a_text(place: str, value: Any, *, printable: bool = False) -> str:
    """Give a text; raise a UsageError if it is something else, or empty or of several lines."""
    if not isinstance(value, str) or (printable and not (value and value.isprintable())):
        kind = "a text of printable characters" if printable else "a text"
        fail(f"{place} must be {kind}, not {show_value(value)}")
    return value


def a_number(place: str, value: Any, most: float = sys.float_info.max) -> float:
    """Give a number from 0 on; raise a UsageError if it is something else, or above ``most``.

    >>> a_number("memory", 10**400)
    Traceback (most recent call last):
    zerobubble.errors.UsageError: memory must be a number from 0 to 1.79769e+308, not 1000...
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        fail(f"{place} must be a number from 0 to {most:g}, not {show_value(value)}")
    number: float = value
    return number


def a_count(place: str, value: Any) -> int:
    """Give a whole number from 1 on; raise a UsageError if it is something else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        kind = "of 1 or more" if not isinstance(value, int) or value <= MOST else f"up to {MOST}"
        fail(f"{place} must be a whole number {kind}, not {show_value(value)}")
    return value
