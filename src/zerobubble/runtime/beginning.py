"""With what does a step begin, and how can it begin again? Batch, random state, module buffers."""

import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from zerobubble.runtime.batch import Batch


class Beginning:
    """What the forwards of a step change, as it is now: generators, buffers and the batch.

    Generators are the default ones of Python, NumPy and torch; one that a module has made for
    itself is not known here.

    Args:
        batch: of the step.
        modules: whose buffers are saved.
        device: whose generator is saved beside those of the CPU.
    """

    def __init__(self, batch: Batch, modules: Iterable[nn.Module], device: torch.device) -> None:
        self.batch = batch.copy()
        self._device = device
        self._python_state, self._numpy_state = random.getstate(), np.random.get_state()
        self._cpu_state = torch.get_rng_state()
        self._cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._buffers = [
            (module, name, buffer, buffer.clone())
            for whole in modules
            for module in whole.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore(self) -> None:
        """Put generators and buffers back."""
        random.setstate(self._python_state)
        np.random.set_state(self._numpy_state)
        torch.set_rng_state(self._cpu_state)
        if self._cuda_state is not None:
            torch.cuda.set_rng_state(self._cuda_state, self._device)
        for module, name, buffer, value in self._buffers:
            buffer.copy_(value)
            module._buffers[name] = buffer
