"""On which device, and in which precision, does a rank compute?"""

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from zerobubble.errors import UsageError

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def find_device(device: str | torch.device) -> torch.device:
    """Turn a name into a device that is there, or raise a UsageError."""
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device {device!r} is unknown: use cpu, cuda or cuda:0") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not supported: use cpu, cuda or cuda:0")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: no CUDA device is available here: use --device cpu")
    return chosen


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, instead of giving it back to the system.

    Training on a CPU frees and takes the same large tensors again in every step. By default glibc
    gives each of them back, and the system clears the pages when they are taken again: up to a
    third of a step. This changes the whole process and is therefore for programs, such as the
    trainer, to call; without glibc, or where the environment sets MALLOC_MMAP_MAX_, it does
    nothing.
    """
    if sys.platform != "linux" or "MALLOC_MMAP_MAX_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def autocast(
    device: torch.device, dtype: torch.dtype | None
) -> Callable[[], AbstractContextManager[Any]]:
    """Give what makes the context of a forward in mixed precision; None: a context of nothing."""
    return nullcontext if dtype is None else partial(torch.autocast, device.type, dtype)
