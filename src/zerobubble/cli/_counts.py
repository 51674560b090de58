"""Which whole numbers does a word such as 1,2,4 mean?"""

from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value

MOST_DIGITS = 15


def is_count(word: str) -> bool:
    """Say whether a word is a whole number of 1 or more that is not absurdly large."""
    is_short = word.isascii() and word.isdecimal() and len(word) <= MOST_DIGITS
    return is_short and int(word) > 0


def read_counts(flag: str, text: str) -> list[int]:
    """Read numbers of 1 or more, separated by commas.

    Raises:
        UsageError: there is something else; the message names the flag.

    >>> read_counts("--microbatch-size", "1,2,4")
    [1, 2, 4]
    """
    words = text.split(",")
    return [_count(flag, text, word, "numbers of 1 or more, as in 1,2,4") for word in words]


def read_count(flag: str, text: str) -> int:
    """Read one number of 1 or more.

    Raises:
        UsageError: it is something else; the message names the flag.
    """
    return _count(flag, text, text, "a number of 1 or more")


def _count(flag: str, text: str, word: str, kind: str) -> int:
    if not is_count(word):
        raise UsageError(f"{flag} {show_value(text)}: write {kind}, of up to {MOST_DIGITS} digits")
    return int(word)
