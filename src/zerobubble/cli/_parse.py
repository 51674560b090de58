"""How do the words of a command line become a dataclass, and a mistake one line?"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import dropwhile, takewhile
from typing import Any, TypeVar, get_type_hints

import tyro

from zerobubble.errors import UsageError

T = TypeVar("T")

# Options of one command that are asked of others, and what these take instead.
_KNOWN_ELSEWHERE = {
    "--placement": "a schedule brings its own; po-h:v=8 has 8 stages a rank, and a function in a "
    "Python file any placement"
}


def parse(kind: type[T], argv: Sequence[str], *, command: str, **options: Any) -> T:
    """Fill a dataclass from the arguments of ``zerobubble COMMAND``; ``--help`` prints and exits.

    ``options`` go to ``tyro.cli``, such as ``default`` or ``config``; without ``config`` a flag of
    two values is written ``--flag`` only.

    Raises:
        UsageError: an argument is unknown, missing or wrong, or the dataclass refuses it.
    """
    prog, complaint = f"zerobubble {command}", io.StringIO()
    # Without a description tyro would load a parser of docstrings.
    options.setdefault("description", kind.__doc__)
    options.setdefault("config", (tyro.conf.FlagCreatePairsOff,))
    try:
        with redirect_stderr(complaint):
            parsed, unknown = tyro.cli(
                kind, prog=prog, args=list(argv), return_unknown_args=True, **options
            )
    except SystemExit as end:
        if not end.code:
            raise
        sentence = f"{one_line(complaint.getvalue())} (see {prog} --help)"
        raise _refusal(end) or UsageError(sentence) from None
    if unknown:
        raise UsageError(f"{_describe_unknown(unknown[0], kind)} (see {prog} --help)")
    result: T = parsed
    return result


def _refusal(error: BaseException | None) -> UsageError | None:
    """Find the dataclass's own error, which tyro caught and turned into an exit."""
    while error is not None and not isinstance(error, UsageError):
        error = error.__context__
    return error


def _describe_unknown(argument: str, kind: type) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    name = argument.partition("=")[0].replace("_", "-")
    if name in _KNOWN_ELSEWHERE:
        return f"unrecognized option {argument}: {_KNOWN_ELSEWHERE[name]}"
    near = get_close_matches(name, _flags(kind), n=1, cutoff=0.7)
    return f"unrecognized option {argument}" + "".join(f": did you mean {flag}?" for flag in near)


def _flags(kind: type) -> Iterator[str]:
    """Yield the long flags of a dataclass, those of the dataclasses within it included."""
    types = get_type_hints(kind)
    for setting in fields(kind):
        if is_dataclass(types[setting.name]):
            yield from _flags(types[setting.name])
        else:
            yield f"--{setting.name.replace('_', '-')}"


def one_line(box: str) -> str:
    """Take the sentence out of the box, drawn or plain, in which tyro reports a mistake.

    >>> one_line("╭─ Value error ───╮\\n│ Error parsing -p: │\\n│ bad. │\\n│ ────── │\\n│ Help │")
    'error parsing -p: bad'
    """
    lines = [line.strip("│ ") for line in box.splitlines()[1:]]
    inside = dropwhile(_is_rule, filter(None, lines))
    sentence = " ".join(takewhile(lambda line: not _is_rule(line), inside)).rstrip(".")
    sentence = re.sub(r"^Missing from [^:]*: (\S+).*", r"missing \1", sentence)
    return sentence[:1].lower() + sentence[1:]


def _is_rule(line: str) -> bool:
    return not line.strip("─-╰╯")
