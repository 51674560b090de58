"""How many bytes does a word such as 40GiB mean?"""

import re

from zerobubble.errors import UsageError

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


def read_bytes(text: str, num_ranks: int, flag: str = "--memory") -> list[float]:
    """Read a memory limit for every rank, or one for each; ``flag`` names it in errors.

    Raises:
        UsageError: a limit has no number above 0 or no unit, or there are too few or too many.

    >>> read_bytes("1.5KiB,2KB", num_ranks=2)
    [1536.0, 2000.0]
    """
    sizes = [_size(flag, text, word.strip()) for word in text.split(",")]
    if len(sizes) not in (1, num_ranks):
        raise UsageError(
            f"{flag} gives {len(sizes)} limits for {num_ranks} ranks: write one, or one for each "
            "rank"
        )
    return sizes if len(sizes) > 1 else sizes * num_ranks


def _size(flag: str, text: str, word: str) -> float:
    match = _SIZE.fullmatch(word)
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"{flag} {text!r}: write bytes with a unit, as in 40GiB; the units are "
            f"{', '.join(_UNITS)}"
        )
    return float(match[1]) * _UNITS[match[2]]
