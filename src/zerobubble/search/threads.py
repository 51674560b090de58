"""How are several walks of one search run side by side? Compiled code lets other threads run."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(function: Callable[[T, Event], R], items: Sequence[T]) -> list[R]:
    """Call a function for each item on a thread of its own; give the results in order.

    The function should end soon after the event is set, as it is when one of them fails or the
    user interrupts. What one call does must not depend on the others, or the result would depend
    on their speed.
    """
    cancelled = Event()
    with ThreadPoolExecutor(max(1, len(items))) as pool:
        try:
            return list(pool.map(lambda item: function(item, cancelled), items))
        finally:
            cancelled.set()
