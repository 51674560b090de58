"""Where do the activations of a rank go when its schedule offloads them?"""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.offload.copying import Copies, ThreadCopies
from zerobubble.runtime.offload.file import FileStore
from zerobubble.runtime.offload.marks import CopyMarks
from zerobubble.runtime.offload.parcel import Parcel
from zerobubble.runtime.offload.pool import HostPool
from zerobubble.runtime.offload.shared import SharedStorages
from zerobubble.runtime.offload.store import Store, VerifiedStore
from zerobubble.runtime.offload.streams import StreamCopies


@dataclass(frozen=True)
class Offload:
    """Where offloaded activations wait; what is offloaded, and when, the schedule alone says.

    What moves is all that autograd saves, but for parameters, buffers, the batch and what crosses
    into the stage. Tensors that a custom autograd Function keeps on its ``ctx``, without
    ``save_for_backward``, stay on the device. Layers cannot use ``torch.func`` transforms.

    Args:
        directory: a folder for one file a rank in place of host memory; made if it is missing.
        host_memory: the most bytes of host memory that a rank may take for it; None: no limit.
        verify: whether all that comes back is compared with a checksum.
        smallest_bytes: tensors on smaller storages stay on the device.

    Raises:
        UsageError: a size is not a whole number from 0 on, or ``directory`` is no path.
    """

    directory: str | Path | None = None
    host_memory: int | None = None
    verify: bool = False
    smallest_bytes: int = 4096

    def __post_init__(self) -> None:
        _must_be_bytes("smallest_bytes", self.smallest_bytes)
        if self.host_memory is not None:
            _must_be_bytes("host_memory", self.host_memory)
        if self.directory is not None and not (
            isinstance(self.directory, (str, Path)) and str(self.directory)
        ):
            raise UsageError(
                f"directory must be the path of a folder, or None for none, not {self.directory!r}"
            )
        if not isinstance(self.verify, bool):
            raise UsageError(f"verify must be True or False, not {self.verify!r}")

    def try_directory(self) -> None:
        """Make a file in the folder, if there is one, and remove it, and what killed ranks left.

        Raises:
            UsageError: it cannot be written to.
        """
        if self.directory is not None:
            FileStore(self.directory, rank=0).close()


def _must_be_bytes(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise UsageError(f"{name} must be a whole number of bytes, at least 0, not {value!r}")


class Offloading:
    """The copy engines and the store of one rank; nothing is started before it is needed.

    Args:
        settings: of the user.
        device: where the rank computes.
        rank: this one.

    Attributes:
        pool: the host memory, with its peak.
        marks: when the copies began and ended.

    Raises:
        UsageError: the folder cannot be written to.
    """

    def __init__(self, settings: Offload, device: torch.device, rank: int) -> None:
        self.settings = settings
        self.pool = HostPool(settings.host_memory, is_pinned=device.type == "cuda")
        store: Store | None = None
        if settings.directory is not None:
            store = FileStore(settings.directory, rank)
        elif device.type == "cpu" or settings.verify:
            store = self.pool
        if store is not None and settings.verify:
            store = VerifiedStore(store)
        self.marks = CopyMarks()
        self.copies: Copies
        if device.type == "cuda":
            self.copies = StreamCopies(device, self.pool, store, self.marks)
        else:
            assert store is not None
            self.copies = ThreadCopies(store, self.marks)

    def parcel(self, given: Iterable[Tensor], shared: SharedStorages | None = None) -> Parcel:
        """Make the parcel of one stage and microbatch, which leaves ``given`` where they are.

        ``shared`` is for all parcels of a stage.
        """
        return Parcel(self.copies, given, self.settings.smallest_bytes, shared)

    def close(self) -> None:
        """End the copies and remove the file."""
        self.copies.close()
