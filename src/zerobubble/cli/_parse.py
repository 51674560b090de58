"""How do the words of a command line become a dataclass, and a mistake one line?"""

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from itertools import dropwhile, takewhile
from typing import Any, TypeVar

import tyro

from zerobubble.errors import UsageError

T = TypeVar("T")


def parse(kind: type[T], argv: Sequence[str], *, command: str, **options: Any) -> T:
    """Fill a dataclass from the arguments of ``zerobubble COMMAND``; ``--help`` prints and exits.

    ``options`` go to ``tyro.cli``, such as ``default`` or ``config``. A flag of two values is
    written ``--flag`` only.

    Raises:
        UsageError: an argument is unknown, missing or wrong.
    """
    prog, complaint = f"zerobubble {command}", io.StringIO()
    options["config"] = (*options.get("config", ()), tyro.conf.FlagCreatePairsOff)
    try:
        with redirect_stderr(complaint):
            parsed, unknown = tyro.cli(
                kind, prog=prog, args=list(argv), return_unknown_args=True, **options
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(f"{one_line(complaint.getvalue())} (see {prog} --help)") from None
    if unknown:
        what = "unrecognized option" if unknown[0].startswith("-") else "unexpected argument"
        raise UsageError(f"{what} {unknown[0]} (see {prog} --help)")
    result: T = parsed
    return result


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
