"""How are activations copied beside the compute of a CPU? By one thread for each direction."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from zerobubble.runtime.offload.marks import CopyMarks
from zerobubble.runtime.offload.store import Place, Store

_Result = TypeVar("_Result", covariant=True)


class Copy(Protocol[_Result]):
    """A copy under way."""

    def result(self) -> _Result:
        """Let the compute wait until the copy has ended, or raise what went wrong in it."""


class Copies(Protocol):
    """The two copy engines of a rank; each makes its copies in the order they are asked for.

    Attributes:
        device: whose memory they copy.
    """

    device: torch.device

    def out(self, sources: list[Tensor]) -> Copy[list[Place]]:
        """Begin to copy device memory away; takes the tensors out of the list when it is done."""

    def back(self, places: list[Place], targets: list[Tensor]) -> Copy[None]:
        """Begin to copy into device memory and free the places; empties both lists likewise."""

    def free(self, place: Place) -> None:
        """Forget what was copied away."""

    def close(self) -> None:
        """End the engines and let their memory go."""


class ThreadCopies:
    """Copies between the memory of a CPU and a store.

    Args:
        store: where the bytes go.
        marks: takes when the threads make each copy.
    """

    device = torch.device("cpu")

    def __init__(self, store: Store, marks: CopyMarks | None = None) -> None:
        self._store = store
        self._marks = marks or CopyMarks()
        self._out, self._back = (
            ThreadPoolExecutor(1, f"zerobubble-{direction}") for direction in ("offload", "load")
        )
        self.free = store.free

    def out(self, sources: list[Tensor]) -> Copy[list[Place]]:
        """Begin to put tensors (uint8) into the store."""
        return self._out.submit(self._put_all, sources)

    def _put_all(self, sources: list[Tensor]) -> list[Place]:
        with self._marks.around(is_out=True):
            return put_all(self._store.put, self._store.free, sources)

    def back(self, places: list[Place], targets: list[Tensor]) -> Copy[None]:
        """Begin to get tensors (uint8) from the store."""
        return self._back.submit(self._get_all, places, targets)

    def _get_all(self, places: list[Place], targets: list[Tensor]) -> None:
        try:
            with self._marks.around(is_out=False):
                for place, target in zip(places, targets, strict=True):
                    self._store.get(place, target)
        finally:
            for place in places:
                self._store.free(place)
            targets.clear()

    def close(self) -> None:
        """Let the threads end and the store be emptied."""
        for thread in (self._out, self._back):
            thread.shutdown(wait=True, cancel_futures=True)
        self._store.close()


def put_all(
    put: Callable[[Tensor], Place], free: Callable[[Place], None], sources: list[Tensor]
) -> list[Place]:
    """Put all tensors or, if that fails, none; the list is emptied, since a thread may hold it."""
    places: list[Place] = []
    try:
        places.extend(map(put, sources))  # which keeps those before one that fails
    except BaseException:
        for place in places:
            free(place)
        raise
    finally:
        sources.clear()
    return places
