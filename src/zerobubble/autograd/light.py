"""Which activations are so cheap that B computes them again, and how do they leave the graph?"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import _has_any_global_hook

from zerobubble.autograd.intercept import is_plain_autograd
from zerobubble.autograd.operands import is_dense
from zerobubble.autograd.patching import Patches
from zerobubble.autograd.recipe import (
    Blank,
    Handed,
    Held,
    Input,
    Kept,
    Part,
    Recipe,
    Slot,
    give,
    tensors_of,
)

_NORMS = "layer_norm rms_norm group_norm normalize"
_ACTIVATIONS = (
    "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish prelu "
    "relu relu6 selu sigmoid silu softplus softshrink softsign tanh tanhshrink"
)
_DROPOUTS = "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout"


class _Kind(NamedTuple):
    """What is known of a light function.

    Attributes:
        draws: it draws random numbers.
        needs_values: its backward depends on the values of its input, not on the shape alone.
        only_of_light: it is light only where its input is itself computed again.
    """

    draws: bool = False
    needs_values: bool = True
    only_of_light: bool = False


_PLAIN, _DROPOUT = _Kind(), _Kind(draws=True, needs_values=False)
_MODULE, _CAST = _Kind(draws=True), _Kind(only_of_light=True)


class recomputing_light:
    """Throw away what norms, activation functions and dropout save, and compute it again in B.

    Around a module's forward. Norms, activation functions and dropout keep their inputs alone; what
    they save, and their outputs as far as nothing but the graph needs them, is computed again when
    the backward asks for it: once, with the same dropout masks. Gradients have the bits of a plain
    backward. Light are the functions of ``torch.nn.functional`` for norms, activations and dropout,
    thus torch's modules for them, and modules without submodules and matrices whose class name
    ends in ``Norm`` or ``Activation``. In-place variants, batch norms, calls inside torch.compile,
    ``torch.func`` or checkpointed regions, and modules with hooks keep what they save.

    It is the innermost of nested ``saved_tensors_hooks``: whatever light keeps and whatever other
    ops save goes through the hooks that are active around it, so that these may move it elsewhere.
    What is computed again does not go through them.
    Source: PipeOffload, arXiv 2503.01328.

    Raises:
        RuntimeError: in the backward, if an input or parameter of a light call was modified since.

    >>> norm, linear = nn.LayerNorm(4), nn.Linear(4, 4)
    >>> x = torch.randn(2, 4, requires_grad=True)
    >>> with recomputing_light():
    ...     y = linear(norm(x))
    >>> y.sum().backward()
    >>> x.grad.shape
    torch.Size([2, 4])
    """

    __slots__ = ("_hooks", "_light", "_outer")

    def __enter__(self) -> None:
        self._light: _Light | None = None
        if not is_plain_autograd() or torch.compiler.is_compiling():
            return
        self._light = _Light(_innermost_hooks())
        self._hooks = saved_tensors_hooks(self._light.hold, give)
        self._outer = _here.light
        _hold_patches()
        self._hooks.__enter__()
        _here.light = self._light

    def __exit__(self, *_: object) -> None:
        if self._light is None:
            return
        _here.light = self._outer
        self._hooks.__exit__()
        _drop_patches()
        self._light.end()


@contextmanager
def ready_to_recompute_light() -> Iterator[None]:
    """Make the blocks of :class:`recomputing_light` inside cheaper to enter; nothing else.

    Functions are patched at the start and restored at the end, not at every block.
    """
    _hold_patches()
    try:
        yield
    finally:
        _drop_patches()


class _Made(NamedTuple):
    """Where a tensor comes from that can be computed again."""

    recipe: Recipe
    output: int
    start: int
    dtype: torch.dtype
    version: int
    storage: ref[torch.UntypedStorage]


class _Light:
    """The light calls of one block.

    Args:
        outer: the hooks through which everything goes that is kept; None if there are none.
    """

    def __init__(self, outer: Any) -> None:
        self._outer = outer
        self._made: dict[int, _Made] = {}

    def end(self) -> None:
        """Forget everything: nodes hold the hooks, and with them this, as long as they live."""
        self._made, self._outer = {}, None

    def is_innermost(self) -> bool:
        """Whether no hooks inside, as of a checkpointed region, take what is saved."""
        hooks = _innermost_hooks()
        return hooks is not None and hooks[0] == self.hold

    def run(
        self,
        function: Callable[..., Any],
        kind: _Kind,
        args: Any,
        kwargs: Any,
        state: Sequence[Tensor] = (),
    ) -> Any:
        """Make a light call, or a plain one where it writes to its inputs or its state."""
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if not self._takes(kind, inputs):
            return function(*args, **kwargs)
        watched = [*inputs, *state]
        versions = [each._version for each in watched]
        recipe = Recipe(function, inputs[0].device, kind.draws)
        outputs = recipe.record(*args, **kwargs)
        if versions != [each._version for each in watched]:
            recipe.keep_all(self.hold)
            return outputs
        blank = not kind.needs_values and self._slot_of(inputs[0]) is None
        hold = Blank if blank else self.hold
        recipe.forget(
            [_as_input(a, hold) for a in args], {k: _as_input(v, hold) for k, v in kwargs.items()}
        )
        if not blank:
            self._note(tensors_of(outputs), inputs, recipe)
        return outputs

    def _takes(self, kind: _Kind, inputs: list[Tensor]) -> bool:
        if not inputs or not all(is_dense(each) for each in inputs):
            return False
        return not kind.only_of_light or self._slot_of(inputs[0]) is not None

    def _note(self, outputs: list[Tensor], inputs: list[Tensor], recipe: Recipe) -> None:
        """Remember the outputs that have a storage of their own."""
        taken = {each.untyped_storage()._cdata for each in inputs}
        for i, output in enumerate(outputs):
            storage = output.untyped_storage()
            key = storage._cdata
            if key not in taken and is_dense(output):
                until = ref(storage, functools.partial(self._gone, key))
                start = int(output.storage_offset())
                self._made[key] = _Made(recipe, i, start, output.dtype, output._version, until)
                taken.add(key)

    def _gone(self, key: int, _: object) -> None:
        self._made.pop(key, None)

    def hold(self, tensor: Tensor) -> Held:
        """Let a tensor go that can be computed again, and keep any other one."""
        slot = self._slot_of(tensor)
        if slot is not None:
            return slot
        return Kept(tensor) if self._outer is None else Handed(tensor, self._outer)

    def _slot_of(self, tensor: Tensor) -> Slot | None:
        if not self._made or not is_dense(tensor):
            return None
        made = self._made.get(tensor.untyped_storage()._cdata)
        if (
            made is None
            or made.version != tensor._version
            or made.dtype != tensor.dtype
            or not made.recipe.is_pending
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        distance = int(tensor.storage_offset()) - made.start
        part = Part(made.output, tuple(tensor.size()), tensor.stride(), distance)
        return made.recipe.slot_of(part)


class _Here(threading.local):
    light: _Light | None = None


_here = _Here()
_lock = threading.Lock()
_num_blocks = 0


def _hold_patches() -> None:
    global _num_blocks
    with _lock:
        if _num_blocks == 0:
            _patches.apply()
        _num_blocks += 1


def _drop_patches() -> None:
    global _num_blocks
    with _lock:
        _num_blocks -= 1
        if _num_blocks == 0:
            _patches.restore()


def _innermost_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _as_input(argument: Any, hold: Callable[[Tensor], Held]) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return Input(hold(argument), argument.requires_grad)


def _current() -> _Light | None:
    """Return this thread's block if its hooks would take what a call saves now."""
    light = _here.light
    if light is None or not is_plain_autograd() or not light.is_innermost():
        return None
    return light


@functools.cache  # the same object every time: a compiled module is guarded on its identity
def _light_function(original: Callable[..., Any], kind: _Kind) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        light = _current()
        if light is None:
            return original(*args, **kwargs)
        return light.run(original, kind, args, kwargs)

    return call


@functools.cache
def _light_module_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        kind: Any = type(self)
        if torch.compiler.is_compiling() or not _is_light_class(kind):
            return original(self, *args, **kwargs)
        light = _current()
        if light is None or not _is_light(self):
            return original(self, *args, **kwargs)
        forward = _Forward(self)
        return light.run(forward, _MODULE, args, kwargs, forward.state)

    return call


@functools.cache
def _is_light_class(kind: Any) -> bool:
    """Whether the name tells a norm or activation; torch's own are known by their functions."""
    is_of_torch = kind.__module__.startswith("torch.")
    return kind.__name__.endswith(("Norm", "Activation")) and not is_of_torch


def _is_light(module: nn.Module) -> bool:
    return (
        not module._modules
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and all(p is None or (is_dense(p) and p.dim() <= 1) for p in module._parameters.values())
    )


class _Forward:
    """A module's forward, to be run again as long as its parameters and buffers are the same."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.state = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        self._kept = [Kept(each) for each in self.state]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for kept in self._kept:
            kept.value()
        return self._module.forward(*args, **kwargs)

    def __repr__(self) -> str:
        return type(self._module).__name__


def _sites() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Name every function under which a light call is made."""
    kinds = dict.fromkeys(f"{_NORMS} {_ACTIVATIONS}".split(), _PLAIN)
    kinds |= dict.fromkeys(_DROPOUTS.split(), _DROPOUT)
    for name, kind in kinds.items():
        for owner in (F, torch, Tensor):
            if hasattr(owner, name):
                yield owner, name, functools.partial(_light_function, kind=kind)
    yield Tensor, "to", functools.partial(_light_function, kind=_CAST)
    yield nn.Module, "__call__", _light_module_call


_patches = Patches(_sites())
