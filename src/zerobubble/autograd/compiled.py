"""How does a W item leave code that torch.compile has made?

While compiling, the patched ops of ``intercept.py`` run the op on an alias of its weight that
autograd does not know, so the graph holds the input gradient alone, and tap the output: the tap's
backward is the custom op ``zerobubble::stash``, which pushes what W needs on a queue. Which weight
and which queue is never part of the graph. Both arrive as integer tensors, inputs of the graph that
are read from the weight at every call, so one compiled graph serves any module and microbatch.
"""

import itertools
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from zerobubble.autograd import ops
from zerobubble.autograd.function import ANCHOR, ANCHOR_NODE, Op
from zerobubble.autograd.operands import is_rows, is_trainable
from zerobubble.autograd.queue import WeightQueue

T = TypeVar("T")


class _Numbers(Generic[T]):
    """Number objects without keeping them alive; a number is never used again."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._tensors: Any = WeakIdKeyDictionary()
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def of(self, item: T) -> Tensor:
        """Return the object's number, always as the same scalar int64 tensor."""
        tensor: Tensor | None = self._tensors.get(item)
        if tensor is None:
            number = next(self._next)
            self._objects[number] = item
            tensor = self._tensors.setdefault(item, torch.tensor(number, device="cpu"))
        return tensor

    def find(self, number: Tensor) -> T | None:
        """Return the object, or None once it is gone."""
        return self._objects.get(int(number))


class _Address(NamedTuple):
    """What a graph takes in, as tensors, for one weight at one call."""

    alias: Tensor
    parameter: Tensor
    queue: Tensor


_parameters: _Numbers[Parameter] = _Numbers()
_queues: _Numbers[WeightQueue] = _Numbers()
_aliases: Any = WeakIdKeyDictionary()


def _alias(parameter: Parameter) -> Tensor:
    """Return the same alias every time: guards compare the identities of a graph's inputs."""
    alias: Tensor | None = _aliases.get(parameter)
    if alias is None or alias.dtype != parameter.dtype or not alias.is_set_to(parameter):
        alias = _aliases[parameter] = parameter.detach()
    return alias


def provide_addresses(current_queue: Callable[[], WeightQueue | None]) -> None:
    """Give every Parameter its address in the running (stage, microbatch), as a property.

    It is None where nothing can be deferred. Dynamo reads a property of a graph's input anew at
    every call, and guards on what it finds, so code is compiled once more for the other case.
    """

    def address(parameter: Parameter) -> tuple[Tensor, ...] | None:
        queue = current_queue()
        if queue is None or not is_trainable(parameter):
            return None
        return tuple(_Address(_alias(parameter), _parameters.of(parameter), _queues.of(queue)))

    Parameter._zerobubble_address = property(address)  # type: ignore[attr-defined]


# zerobubble::stash, run by the backward of a compiled graph


def _stash(x: Tensor, dy: Tensor, parameter: Tensor, queue: Tensor, op: str) -> Tensor:
    """Push the W of one op; return the gradient of the anchor."""
    weight = _parameters.find(parameter)
    if weight is not None and torch._C._will_engine_execute_node(ANCHOR_NODE):
        gradient = ops._Matmul(op, weight, None, transposed=op == "linear")
        owner = _queues.find(queue)
        if owner is None:
            torch.autograd.backward(weight, gradient(x, dy))
        else:
            # The graph writes its next results into the memory of x and dy.
            owner.push(gradient, x.clone(), dy.clone())
    return torch.zeros((), device="cpu")


def _fake_stash(x: Tensor, dy: Tensor, parameter: Tensor, queue: Tensor, op: str) -> Tensor:
    return torch.empty((), device="cpu")


_library = torch.library.Library("zerobubble", "DEF")


def _register() -> None:
    """Define the op as effectful: no pass may drop it, merge two of them or change their order."""
    from torch._library.effects import EffectType

    _library.define(
        "stash(Tensor x, Tensor dy, Tensor parameter, Tensor queue, str op) -> Tensor",
        tags=(torch.Tag.cudagraph_unsafe, torch.Tag.needs_exact_strides),
    )
    _library.impl("stash", _stash, "CompositeExplicitAutograd")
    torch.library.register_fake("zerobubble::stash", _fake_stash, lib=_library)
    torch.library._register_effectful_op("zerobubble::stash", EffectType.ORDERED, lib=_library)


def _why_unavailable() -> str | None:
    try:
        _register()
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} cannot register an effectful op ({error})"
    return None


_unavailable = _why_unavailable()


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, anchor: Tensor, x: Tensor, parameter: Tensor, queue: Tensor, op: str
    ) -> Tensor:
        ctx.save_for_backward(x, parameter, queue)
        ctx.op = op
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, parameter, queue = ctx.saved_tensors
        token = torch.ops.zerobubble.stash(x, dy, parameter, queue, ctx.op)
        return dy, token, None, None, None, None


# What the patched ops do while compiling


def _linear(op: Op, input: Any, weight: Any, bias: Any = None) -> Any:
    x, address = _split(input, weight)
    if address is None:
        return op(input, weight, bias)
    return _tap(op(x, address[0], bias), x, address, "linear")


def _matmul(op: Op, *operands: Any, **options: Any) -> Any:
    if options or len(operands) != 2:
        return op(*operands, **options)
    x, address = _split(*operands)
    if address is None:
        return op(*operands)
    return _tap(op(x, address[0]), x, address, "matmul")


def _addmm(op: Op, *operands: Any, **options: Any) -> Any:
    if options or len(operands) != 3:
        return op(*operands, **options)
    bias, *factors = operands
    x, address = _split(*factors)
    if address is None:
        return op(*operands)
    return _tap(op(bias, x, address[0]), x, address, "addmm")


def _split(x: Any, weight: Any) -> tuple[Any, Any]:
    """Return x, cast as autocast does, and the weight's address or None."""
    if (
        _unavailable is not None
        or torch.compiler.is_exporting()
        or not torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or not (type(weight) is Parameter and weight.dim() == 2 and is_rows(x))
    ):
        return x, None
    return _autocast(x), weight._zerobubble_address  # type: ignore[attr-defined]


def _tap(y: Any, x: Any, address: Any, op: str) -> Any:
    _, parameter, queue = address
    return _Tap.apply(y, ANCHOR, x.detach(), parameter, queue, op)  # type: ignore[no-untyped-call]


def _autocast(x: Tensor) -> Tensor:
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.is_floating_point() and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x


_HANDLERS: dict[Op, Op] = {ops.linear: _linear, ops.matmul: _matmul, ops.addmm: _addmm}


def traced(handler: Op) -> Op:
    """Return what a call that ``handler`` takes otherwise does while torch compiles it."""
    return _HANDLERS.get(handler, lambda op, *args, **kwargs: op(*args, **kwargs))
