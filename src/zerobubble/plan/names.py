"""How are layers and bytes written for people?"""

import math
import re
from collections.abc import Sequence

_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def layer_ranges(names: Sequence[str], numbers: Sequence[int]) -> str:
    """Name layers, with those that are numbered in a row as a range.

    >>> layer_ranges(["embedding", "block 0", "block 1", "block 2", "head"], [0, 1, 2, 3])
    'embedding, block 0-2'
    """
    runs: list[tuple[str, int | None, int | None]] = []
    for name in (names[number] for number in numbers):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            runs.append((name, None, None))
            continue
        kind, number = match[1], int(match[2])
        if runs and runs[-1][0] == kind and runs[-1][2] == number - 1:
            runs[-1] = (kind, runs[-1][1], number)
        else:
            runs.append((kind, number, number))
    return ", ".join(_run(*run) for run in runs)


def _run(kind: str, first: int | None, last: int | None) -> str:
    if first is None:
        return kind
    return f"{kind}{first}" if first == last else f"{kind}{first}-{last}"


def bytes_up(num_bytes: float) -> str:
    """Write a number of bytes in binary units, rounded up so that a limit of it is enough.

    >>> bytes_up(1.5 * 2**30), bytes_up(2**20 + 1), bytes_up(12)
    ('1.5 GiB', '1.01 MiB', '12 B')
    """
    if math.isinf(num_bytes):
        return "no limit"
    for unit, size in _UNITS:
        if num_bytes >= size:
            return f"{math.ceil(num_bytes / size * 100) / 100:g} {unit}"
    return f"{math.ceil(num_bytes)} B"


def unit_for(most_bytes: float) -> tuple[str, float]:
    """Choose the binary unit that suits a number of bytes, and give its size.

    >>> unit_for(3 * 2**28), unit_for(80 * 2**30), unit_for(12)
    (('MiB', 1048576.0), ('GiB', 1073741824.0), ('B', 1.0))
    """
    return next((unit for unit in _UNITS if most_bytes >= unit[1]), ("B", 1.0))
