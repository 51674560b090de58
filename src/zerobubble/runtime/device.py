"""On which device, and in which precision, does a rank compute?"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from zerobubble.errors import UsageError


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


def autocast(
    device: torch.device, dtype: torch.dtype | None
) -> Callable[[], AbstractContextManager[Any]]:
    """Give what makes the context of a forward in mixed precision; None: a context of nothing."""
    return nullcontext if dtype is None else partial(torch.autocast, device.type, dtype)
