"""Which storages stay, because not one graph alone holds them? Those that modules keep."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch


class SharedStorages:
    """Storages that more than one F of a stage has saved: masks or rotations, say.

    Moving those would free nothing, and bring a copy back for every microbatch. That one is shared
    is known from the second F on. Of one stage, since what travels through several stages with a
    microbatch is saved by each, and kept by none.
    """

    def __init__(self) -> None:
        self._saved: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()
        self._shared: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()

    def note(self, storages: Iterable[torch.UntypedStorage]) -> None:
        """Take what one F has saved, each storage once."""
        for storage in storages:
            seen = self._shared if storage._cdata in self._saved else self._saved
            seen[storage._cdata] = storage

    def __contains__(self, storage: torch.UntypedStorage | None) -> bool:
        return storage is not None and storage._cdata in self._shared
