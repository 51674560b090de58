"""How is a file read so that whatever is wrong with it is told in one line?"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import Repr
from typing import Any

from zerobubble.errors import UsageError


def read_text(path: str | Path) -> str:
    """Read a text file.

    Raises:
        UsageError: there is no such file, or it is not UTF-8 text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text file.

    Raises:
        UsageError: the file cannot be written.
    """
    with _writing(path):
        Path(path).write_text(text, encoding="utf-8")


def require_writable(path: str | Path) -> None:
    """Make sure that a file can be written, before long work whose result goes there.

    Raises:
        UsageError: it cannot be.
    """
    with _writing(path):
        is_new = not Path(path).exists()
        with Path(path).open("a", encoding="utf-8"):
            pass
        if is_new:
            Path(path).unlink()


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from None


def parse_json(text: str, source: str) -> Any:
    """Parse JSON text; ``source`` names it in errors.

    Raises:
        UsageError: the text is not JSON, or gives a key twice; the message names the place.

    >>> parse_json('{"a": 1,}', "costs.json")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: costs.json: line 1, column 9: not JSON: ...
    """
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{source}: {place}: not JSON: {error.msg}") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"{source}: a number has too many digits or lists are nested too deep: shorten them"
        ) from None


def show_value(value: Any) -> str:
    """Write any JSON value in a few characters of one line.

    >>> show_value([1, 2, 3, 4, 5, 6, 7, 8])
    '[1, 2, 3, 4, 5, 6, ...]'
    """
    short = Repr()
    short.maxlong = short.maxother = 40
    return short.repr(value)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise UsageError(f"key {show_value(key)} is given twice: delete one")
        values[key] = value
    return values


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return getattr(error, "strerror", None) or str(error)
