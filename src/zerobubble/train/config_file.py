"""How is a training configuration written to a TOML file and read back?

A table per section, a key per setting. Keys that are left out keep their default; a section, key or
type that does not exist is an error that says which one was meant.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from zerobubble.errors import UsageError
from zerobubble.train.config import TrainConfig

_SECTIONS: dict[str, type[Any]] = get_type_hints(TrainConfig)
SECTION_OF: dict[str, str] = {
    setting.name: section for section, kind in _SECTIONS.items() for setting in fields(kind)
}
"""Section of every setting: a name belongs to one section only."""


def to_toml(config: TrainConfig) -> str:
    """Return ``config`` as TOML, every setting written out; :func:`from_toml` reads it back.

    >>> to_toml(TrainConfig()).splitlines()[:3]
    ['[run]', 'ranks = 2', 'schedule = "zb-h1"']
    """
    return "\n".join(_table(name, getattr(config, name)) for name in _SECTIONS)


def from_toml(text: str, source: str) -> TrainConfig:
    """Return the configuration that ``text`` describes; ``source`` names it in errors.

    Raises:
        UsageError: in one line, what is malformed, unknown, of the wrong type or out of range.

    >>> from_toml("[model]\\ndim = 64\\nheads = 2", "run.toml").model.dim
    64
    >>> from_toml("[model]\\ndims = 64", "run.toml")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: run.toml: [model] has no key dims: did you mean dim?
    """
    try:
        tables = tomllib.loads(text)
        sections: dict[str, Any] = {name: _section(name, table) for name, table in tables.items()}
        return TrainConfig(**sections)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not valid TOML: {error}") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _section(name: str, table: object) -> object:
    if name in SECTION_OF:
        raise UsageError(f"key {name} belongs below [{SECTION_OF[name]}]")
    if name not in _SECTIONS:
        raise UsageError(f"unknown section [{name}]: {_suggestion(name, _SECTIONS)}")
    if not isinstance(table, dict):
        raise UsageError(f"{name} is a section: write [{name}] and its keys below")
    kind = _SECTIONS[name]
    types = get_type_hints(kind)
    for key in table:
        if key not in types:
            home = SECTION_OF.get(key)
            hint = f"it belongs below [{home}]" if home else _suggestion(key, types)
            raise UsageError(f"[{name}] has no key {key}: {hint}")
    try:
        return kind(**{key: _typed(key, value, types[key]) for key, value in table.items()})
    except UsageError as error:
        raise UsageError(f"[{name}] {error}") from None


def _suggestion(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _typed(key: str, value: object, expected: Any) -> object:
    """Return a TOML value as what the setting holds, or raise."""
    if expected is float and type(value) is int:
        return float(value)
    if get_origin(expected) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise UsageError(f"{key} must be an array of strings, not {_written(value)}")
    if type(value) in get_args(expected):
        return value
    # A Literal is a string whose choices the section checks itself.
    kind = expected if isinstance(expected, type) else str
    if type(value) is not kind:
        raise UsageError(f"{key} must be {_TYPE_NAMES[kind]}, not {_written(value)}")
    return value


_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _table(name: str, section: object) -> str:
    assert is_dataclass(section)
    lines = [f"{s.name} = {_written(getattr(section, s.name))}" for s in fields(section)]
    return "\n".join([f"[{name}]", *lines, ""])


def _written(value: object) -> str:
    """Write a value as TOML, which spells strings, booleans and arrays of strings as JSON does."""
    if isinstance(value, str | bool):
        # JSON leaves DEL as it is, TOML does not allow it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return str(value)
