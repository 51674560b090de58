"""How does a page get onto the disk without harm to what is there?"""

from collections.abc import Sequence
from pathlib import Path

from zerobubble.errors import UsageError
from zerobubble.formats.reading import write_text
from zerobubble.view.html import MARK, Panel, write_page

_MOST_OPS = 2_000_000
_HEAD = 1000


def require_place(path: str) -> None:
    """Refuse to write over a file that is no page of ours.

    Raises:
        UsageError: there is such a file, or a folder.
    """
    place = Path(path)
    if not place.exists():
        return
    if not place.is_file() or MARK not in _head(place):
        raise UsageError(f"{path} exists and is not a page of zerobubble: write to another file")


def save_page(panels: Sequence[Panel], path: str) -> None:
    """Write the page of some schedules.

    Raises:
        UsageError: they have too many ops for a page, the file cannot be written, or as above.
    """
    num_ops = sum(panel.schedule.num_ops for panel in panels)
    if num_ops > _MOST_OPS:
        raise UsageError(f"{num_ops} ops are too many for a page: show at most {_MOST_OPS}")
    require_place(path)
    write_text(path, write_page(panels))


def _head(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
