"""With what does a step begin, and how can it begin again? Batch, random state, module buffers."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from zerobubble.runtime.boundary import flatten, split_batch
from zerobubble.runtime.stage import Stage


@dataclass(frozen=True)
class Batch:
    """What this rank reads of a batch, split into microbatches.

    Attributes:
        inputs: of the first stage; None on other ranks.
        targets: of the last stage; None on other ranks.
        signature: of the shapes of the inputs.
    """

    inputs: list[Any] | None
    targets: list[Any] | None
    signature: int

    def give(self, stages: Mapping[int, Stage], num_stages: int) -> None:
        """Hand the microbatches to the first and last stage."""
        if self.inputs is not None:
            stages[0].give_batch(self.inputs)
        if self.targets is not None:
            stages[num_stages - 1].targets = self.targets

    def copy(self) -> "Batch":
        """Copy the tensors, since a model may change its inputs in place."""
        inputs, targets = pytree.tree_map_only(Tensor, torch.clone, (self.inputs, self.targets))
        return Batch(inputs, targets, self.signature)


def take_batch(x: Any, y: Any, count: int, device: torch.device) -> Batch:
    """Bring a batch to the device in ``count`` microbatches; None is not read here.

    Raises:
        UsageError: it cannot be split so.
    """
    inputs, targets, signature = None, None, 0
    if x is not None:
        inputs = split_batch(_on(device, x), count, "the batch x")
        signature = crc32(repr(flatten(inputs[0], "the batch x")[1]).encode())
    if y is not None:
        targets = split_batch(_on(device, y), count, "the target y")
    return Batch(inputs, targets, signature)


def _on(device: torch.device, value: Any) -> Any:
    tensors, layout = flatten(value, "the batch")
    return layout.build([tensor.to(device, non_blocking=True) for tensor in tensors])


class Beginning:
    """All that the forwards of a step change, as it is now: generators, buffers and the batch.

    Args:
        batch: of the step.
        modules: whose buffers are saved.
        device: whose generator is saved beside those of the CPU.
    """

    def __init__(self, batch: Batch, modules: Iterable[nn.Module], device: torch.device) -> None:
        self.batch = batch.copy()
        self._device = device
        self._python_state = random.getstate()
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
        torch.set_rng_state(self._cpu_state)
        if self._cuda_state is not None:
            torch.cuda.set_rng_state(self._cuda_state, self._device)
        for module, name, buffer, value in self._buffers:
            buffer.copy_(value)
            module._buffers[name] = buffer
