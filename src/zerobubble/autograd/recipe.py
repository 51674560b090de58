"""How is what a cheap call saves and returns thrown away after F and computed again in B?

A :class:`Recipe` is such a call with the inputs that it keeps. A :class:`Slot` stands in the
autograd graph where a tensor of the call was; the first slot that is asked in B runs the call again
and fills all slots of the recipe that are still alive. Inputs may be slots of other recipes.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Held(Protocol):
    """What stands for a tensor between F and B."""

    def value(self) -> Tensor:
        """Give the tensor, outside any graph."""


class Kept:
    """A tensor that stays where it is; as in autograd it must not be written to meanwhile."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def value(self) -> Tensor:
        """Give the tensor, or raise a RuntimeError if it was modified."""
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {list(self._tensor.shape)} is at version "
                f"{self._tensor._version}, expected {self._version}: modify it after the backward"
            )
        return self._tensor


class Handed:
    """A tensor that the hooks around have taken, to keep or to move."""

    __slots__ = ("_packed", "_unpack")

    def __init__(
        self, tensor: Tensor, hooks: tuple[Callable[..., Any], Callable[..., Any]]
    ) -> None:
        pack, self._unpack = hooks
        self._packed = pack(tensor)

    def value(self) -> Tensor:
        """Ask the hooks for the tensor."""
        tensor: Tensor = self._unpack(self._packed)
        return tensor.detach()


class Blank:
    """An input of which only the shape counts, since the call does no more than draw a mask."""

    __slots__ = ("_device", "_dtype", "_size", "_stride")

    def __init__(self, tensor: Tensor) -> None:
        self._size, self._stride = tensor.size(), tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device

    def value(self) -> Tensor:
        """Give a tensor of that shape, with any content."""
        return torch.empty_strided(self._size, self._stride, dtype=self._dtype, device=self._device)


class Part(NamedTuple):
    """Which part of an output a tensor is: strides, and the distance from the output's start."""

    output: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    distance: int


class Slot:
    """A tensor that is computed again when it is asked for: what a node saved, or an output."""

    __slots__ = ("__weakref__", "_place", "_recipe", "_tensor")

    def __init__(self, recipe: "Recipe", place: int | Part) -> None:
        self._recipe, self._place = recipe, place
        self._tensor: Tensor | Held | None = None

    def value(self) -> Tensor:
        """Give the tensor, computed again if no other slot has had it computed."""
        if self._tensor is None:
            self._recipe.run_again()
        assert self._tensor is not None, "running again fills every slot"
        return self._tensor if isinstance(self._tensor, Tensor) else self._tensor.value()

    def fill(self, saved: list[Tensor], outputs: list[Tensor]) -> None:
        """Take the tensor out of what has been computed."""
        if isinstance(self._place, int):
            self._tensor = saved[self._place]
        else:
            output, size, stride, distance = self._place
            whole = outputs[output]
            self._tensor = whole.as_strided(size, stride, whole.storage_offset() + distance)

    def keep(self, held: Held) -> None:
        """Give up computing again: the tensor stays."""
        self._tensor = held


class Recipe:
    """A call that can be made again: the function, its inputs, the autocast and random state.

    Args:
        function: computes the same again from the same arguments.
        device: where it computes.
        draws: whether it draws random numbers.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, draws: bool) -> None:
        self._function = function
        self._autocast = _Autocast.now(device.type)
        self._generator = _generator_of(device) if draws else None
        self._random_state = None if self._generator is None else self._generator.get_state()
        self._inputs: tuple[list[Any], dict[str, Any]] | None = None
        self._slots: list[ref[Slot]] = []
        self._saved: list[Tensor] = []
        self._num_saved = 0

    def record(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call for the first time; what its nodes save is held here until it is kept."""

        def pack(tensor: Tensor) -> Slot:
            self._saved.append(tensor.detach())
            return self._new_slot(len(self._saved) - 1)

        with saved_tensors_hooks(pack, give):
            return self._function(*args, **kwargs)

    def forget(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Let go of what the nodes saved, for arguments whose tensors are an ``Input`` each."""
        if self._generator is not None and self._random_state is not None:
            has_drawn = not torch.equal(self._generator.get_state(), self._random_state)
            self._random_state = self._random_state if has_drawn else None
        self._inputs = (args, kwargs)
        self._num_saved = len(self._saved)
        self._saved = []

    def keep_all(self, hold: Callable[[Tensor], Held]) -> None:
        """Keep what the nodes saved, since the call cannot be made again."""
        for slot, tensor in zip(self._slots, self._saved, strict=True):
            if (living := slot()) is not None:
                living.keep(hold(tensor))
        self._saved = []

    @property
    def is_pending(self) -> bool:
        """Whether it is still to be run again."""
        return self._inputs is not None

    def slot_of(self, part: Part) -> Slot:
        """Make a slot for a part of an output."""
        return self._new_slot(part)

    def run_again(self) -> None:
        """Fill all slots that are alive."""
        assert self._inputs is not None, "a recipe runs again once"
        args, kwargs = self._inputs
        saved: list[Tensor] = []
        hooks = saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), give)
        with torch.enable_grad(), self._autocast.again(), self._same_draws():
            given = [_given(arg) for arg in args], {k: _given(v) for k, v in kwargs.items()}
            with hooks:
                outputs = tensors_of(self._function(*given[0], **given[1]))
        if len(saved) != self._num_saved:
            raise RuntimeError(
                f"{self._function!r} saved {self._num_saved} tensors in F but {len(saved)} when "
                "run again in B: it depends on more than its inputs, so switch its recompute off"
            )
        outputs = [output.detach() for output in outputs]
        for slot in self._slots:
            if (living := slot()) is not None:
                living.fill(saved, outputs)
        self._inputs, self._slots = None, []

    def _new_slot(self, place: int | Part) -> Slot:
        slot = Slot(self, place)
        self._slots.append(ref(slot))
        return slot

    @contextmanager
    def _same_draws(self) -> Iterator[None]:
        if self._generator is None or self._random_state is None:
            yield
            return
        now = self._generator.get_state()
        self._generator.set_state(self._random_state)
        try:
            yield
        finally:
            self._generator.set_state(now)


class Input(NamedTuple):
    """A tensor among the arguments of a recipe."""

    held: Held
    requires_grad: bool


class _Autocast(NamedTuple):
    device_type: str
    is_on: bool
    dtype: torch.dtype | None
    has_cache: bool

    @classmethod
    def now(cls, device_type: str) -> "_Autocast":
        if not torch._C._is_any_autocast_enabled():
            return cls(device_type, False, None, False)
        is_on, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        return cls(device_type, is_on, dtype, torch.is_autocast_cache_enabled())

    def again(self) -> AbstractContextManager[Any]:
        if not self.is_on and not torch._C._is_any_autocast_enabled():
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype, self.is_on, self.has_cache)


def give(held: Held) -> Tensor:
    """Unpack what stands for a saved tensor."""
    return held.value()


def tensors_of(output: Any) -> list[Tensor]:
    """List the tensors of an output: a tensor, or tensors in a tuple or list."""
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    return [each for each in outputs if isinstance(each, Tensor)]


def _given(argument: Any) -> Any:
    if not isinstance(argument, Input):
        return argument
    tensor = argument.held.value().detach()
    return tensor.requires_grad_() if argument.requires_grad else tensor


def _generator_of(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator
