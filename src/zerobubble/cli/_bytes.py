"""How many bytes does a word such as 40GiB mean?"""

from zerobubble.errors import UsageError
from zerobubble.train.rules import read_size


def read_bytes(text: str, num_ranks: int) -> list[float]:
    """Read a memory limit for every rank, or one for each.

    Raises:
        UsageError: a limit has no number above 0 or no unit, or there are too few or too many.

    >>> read_bytes("1.5KiB,2KB", num_ranks=2)
    [1536.0, 2000.0]
    """
    sizes = [read_size(f"--memory {text!r}", word) for word in text.split(",")]
    if len(sizes) not in (1, num_ranks):
        raise UsageError(
            f"--memory gives {len(sizes)} limits for {num_ranks} ranks: write one, or one for each "
            "rank"
        )
    return sizes if len(sizes) > 1 else sizes * num_ranks
