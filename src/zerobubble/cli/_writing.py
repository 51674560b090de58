"""Which file may a command write over? Only one of the kind that it writes."""

import re
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from zerobubble.errors import UsageError
from zerobubble.formats.reading import require_writable
from zerobubble.view.html import MARK

_HEAD = 1000


class FileKind(NamedTuple):
    """What a file is, in words, and how one of this kind begins."""

    name: str
    beginning: re.Pattern[str]


def _json(what: str) -> FileKind:
    beginning = rf'\s*\{{\s*"format":\s*"zerobubble-{what}"'
    return FileKind(f"a {what} of zerobubble", re.compile(beginning))


PAGE = FileKind("a page of zerobubble", re.compile(f".*{re.escape(MARK)}", re.DOTALL))
TRACE = FileKind(
    "a trace of zerobubble",
    re.compile(r'\{"displayTimeUnit": "ms", "otherData": \{"schedule": .*"traceEvents"', re.DOTALL),
)
CSV = FileKind(
    "a CSV of torch.distributed.pipelining",
    re.compile(r"\s*\d+[FBIW]\d+(,\d+[FBIW]\d+)*(,?\d*[FBIW]?\d*$|\n)"),
)
PICTURE = FileKind(
    "a picture of zerobubble", re.compile(r'<svg [^>]*role="img" aria-labelledby="title desc"')
)
SCHEDULE, PLAN, PROFILE = _json("schedule"), _json("plan"), _json("profile")


class Target(NamedTuple):
    """A flag, the file that it names, if any, and what is written there."""

    flag: str
    path: str | None
    kind: FileKind


def require_places(*targets: Target) -> None:
    """Make sure, before any work, that the files a command writes can be and harm no other.

    Raises:
        UsageError: a file cannot be written, is there and of another kind, or is named twice.
    """
    for one, other in combinations([each for each in targets if each.path], 2):
        if Path(str(one.path)).resolve() == Path(str(other.path)).resolve():
            raise UsageError(f"{one.flag} and {other.flag} name the same file, {one.path}")
    for flag, path, kind in targets:
        if path == "":
            raise UsageError(f"{flag} '' names no file: write one, or leave out {flag}")
        if path is not None:
            require_place(path, kind)
            require_writable(path)


def require_place(path: str, kind: FileKind) -> None:
    """Refuse to write over a file that is of another kind and not empty.

    Raises:
        UsageError: there is such a file, or a folder.
    """
    place = Path(path)
    if place.is_dir() or (place.is_file() and not _is_replaceable(place, kind)):
        raise UsageError(f"{path} exists and is not {kind.name}: write to another file")


def _is_replaceable(place: Path, kind: FileKind) -> bool:
    try:
        with place.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}") from None
    return not head or kind.beginning.match(head) is not None
