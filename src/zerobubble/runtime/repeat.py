"""How does F of a microbatch run twice and do the same? R repeats it from the same beginning."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from zerobubble.runtime.boundary import enter

# What allocators of torch align by on any device, in bytes.
_ALIGNMENT = 512

# A buffer's module and name there, and for each the buffer and a copy of its value.
_Place = tuple[nn.Module, str]
_Values = dict[_Place, tuple[Tensor, Tensor]]


class Repeat:
    """What F begins with, until R.

    The first F gets copies, which it may change in place. R finds what F found: the same values,
    the buffers that F changes, and the generators of Python and NumPy (those of torch are seeded
    for every F).

    Args:
        given: input, target and keywords of the microbatch.
        changed: the buffers of the stage that F changes.
    """

    def __init__(self, given: Any, changed: "ChangedBuffers") -> None:
        self.given = given
        self._changed = changed
        self._values = changed.values()
        self._generators = random.getstate(), np.random.get_state()

    def copies(self) -> Any:
        """Copy what is given: inputs of the first F."""
        return pytree.tree_map_only(Tensor, _copy, self.given)

    def tensors(self) -> list[Tensor]:
        """List what is kept for R."""
        return [leaf for leaf in pytree.tree_leaves(self.given) if isinstance(leaf, Tensor)]

    def end_first(self) -> None:
        """Note that the first F has run."""
        self._values = self._changed.learn(self._values)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Let buffers and generators be as they were before F, and put them back in the end."""
        generators, values = (random.getstate(), np.random.get_state()), self._changed.values()
        _set_generators(*self._generators)
        self._changed.restore(self._values)
        try:
            yield
        finally:
            self._changed.restore(values)
            _set_generators(*generators)


class ChangedBuffers:
    """The buffers of a stage that its F changes, as BatchNorm does: seen when F first runs.

    Args:
        module: the layers of the stage.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: list[_Place] | None = None

    def values(self) -> _Values:
        """Copy the values of the buffers that F changes; of all of them until F has been seen."""
        places = self._all() if self._places is None else self._places
        buffers = {place: place[0]._buffers[place[1]] for place in places}
        return {place: (b, b.clone()) for place, b in buffers.items() if b is not None}

    def learn(self, before: _Values) -> _Values:
        """Find the buffers that F has changed, unless that is known; return their values before."""
        if self._places is None:
            self._places = [place for place, old in before.items() if _has_changed(place, *old)]
        return {place: before[place] for place in self._places}

    def restore(self, values: _Values) -> None:
        """Put buffers back; not seen by autograd, whose graphs may have saved them."""
        for (module, name), (buffer, value) in values.items():
            buffer.data.copy_(value)
            module._buffers[name] = buffer

    def _all(self) -> list[_Place]:
        return [
            (module, name)
            for module in self._module.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]


def _has_changed(place: _Place, buffer: Tensor, value: Tensor) -> bool:
    module, name = place
    return module._buffers[name] is not buffer or not torch.equal(buffer, value)


def saving_nothing() -> saved_tensors_hooks:
    """Let graphs made within the block hold nothing; they have no backward."""
    return saved_tensors_hooks(_drop, _missing)


def _drop(tensor: Tensor) -> None:
    return None


def _missing(nothing: None) -> Tensor:
    raise RuntimeError(
        "this forward runs again before its backward and saves nothing until then: do not call "
        "backward() or look into the graph within a layer"
    )


def _copy(tensor: Tensor) -> Tensor:
    """Copy with the very strides and alignment: kernels round by them."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        copy = tensor.detach().clone()
    else:
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in strides)
        first = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
        memory = torch.empty(first + span, dtype=tensor.dtype, device=tensor.device)
        memory[first:].copy_(tensor.detach().as_strided((span,), (1,)))
        copy = memory.as_strided(tensor.shape, tensor.stride(), first)
    return enter(copy.requires_grad_()) if tensor.requires_grad else copy


def _set_generators(of_python: Any, of_numpy: Any) -> None:
    random.setstate(of_python)
    np.random.set_state(of_numpy)
