"""When does every copy of a rank begin and end? Whoever makes it marks that in recorded steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class CopyMarks:
    """Two marks for each copy, of its begin and its end, in the order of the copies.

    Attributes:
        out: of the copies to the host.
        back: of the copies back.
    """

    def __init__(self) -> None:
        self.out: list[Any] = []
        self.back: list[Any] = []
        self._mark: Callable[[], Any] | None = None

    def record(self, mark: Callable[[], Any] | None) -> None:
        """Forget all marks, and let ``mark`` make those from now on; None: make none."""
        self._mark, self.out, self.back = mark, [], []

    @contextmanager
    def around(self, is_out: bool) -> Iterator[None]:
        """Mark the begin and the end of a copy in one of the directions."""
        mark, marks = self._mark, self.out if is_out else self.back
        if mark is None:
            yield
            return
        begin = mark()
        yield
        marks.extend((begin, mark()))
