"""How are functions replaced while a block runs, and put back after the last one?"""

from collections.abc import Callable, Iterable
from typing import Any


class Patches:
    """Functions under the names by which modules call them.

    Args:
        sites: owner, name, and what makes the replacement out of the function found there.
    """

    def __init__(self, sites: Iterable[tuple[Any, str, Callable[[Any], Any]]]) -> None:
        self._sites = list(sites)
        self._replaced: list[tuple[Any, str, Any, bool]] = []

    def apply(self) -> None:
        """Replace all of them."""
        for owner, name, replace in self._sites:
            original = getattr(owner, name)
            self._replaced.append((owner, name, original, name in vars(owner)))
            setattr(owner, name, replace(original))

    def restore(self) -> None:
        """Put all of them back."""
        while self._replaced:
            owner, name, original, is_own = self._replaced.pop()
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
