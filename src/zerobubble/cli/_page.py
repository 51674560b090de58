"""How does a page get onto the disk without harm to what is there?"""

from collections.abc import Sequence

from zerobubble.cli._writing import PAGE, require_place
from zerobubble.errors import UsageError
from zerobubble.formats.reading import write_text
from zerobubble.view.html import Panel, write_page

_MOST_OPS = 2_000_000


def save_page(panels: Sequence[Panel], path: str) -> None:
    """Write the page of some schedules.

    Raises:
        UsageError: they have too many ops for a page, the file cannot be written, or is
            there and no page of ours.
    """
    num_ops = sum(panel.schedule.num_ops for panel in panels)
    if num_ops > _MOST_OPS:
        raise UsageError(f"{num_ops} ops are too many for a page: show at most {_MOST_OPS}")
    require_place(path, PAGE)
    write_text(path, write_page(panels))
