"""How does compiled code find the weight and the queue that one call belongs to?

A compiled graph is shared by modules and microbatches, so neither may be a constant in it. Every
Parameter has its address as a property, which dynamo reads anew at each call: tensors that enter
the graph as inputs, and in its backward, in whatever thread, lead to the objects.
"""

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from zerobubble.autograd.operands import is_trainable
from zerobubble.autograd.queue import WeightQueue

T = TypeVar("T")


class Numbers(Generic[T]):
    """Number objects without keeping them alive; no number is used twice.

    >>> numbers, queue = Numbers(), WeightQueue()
    >>> numbers.find(numbers.of(queue)) is queue
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = itertools.count()
        self._tensors: Any = WeakIdKeyDictionary()
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def of(self, item: T) -> Tensor:
        """Return the object's number, always as the same scalar int64 tensor."""
        with self._lock:
            tensor: Tensor | None = self._tensors.get(item)
            if tensor is None:
                number = next(self._next)
                self._objects[number] = item
                tensor = self._tensors[item] = torch.tensor(number, device="cpu")
            return tensor

    def find(self, number: Tensor) -> T | None:
        """Return the object of that number, or None once it is gone."""
        return self._objects.get(int(number))


parameters: Numbers[Parameter] = Numbers()
queues: Numbers[WeightQueue] = Numbers()
_aliases: Any = WeakIdKeyDictionary()


def provide_addresses(current_queue: Callable[[], WeightQueue | None]) -> None:
    """Give every Parameter its address as the property ``_zerobubble_address``.

    It holds an alias of the weight that has no hooks, the number of the weight and the number of
    the running queue; it is None where nothing can be deferred. Dynamo guards on which of both it
    finds, so that the other case is compiled by itself.
    """

    def address(parameter: Parameter) -> tuple[Tensor, Tensor, Tensor] | None:
        queue = current_queue()
        if queue is None or not is_trainable(parameter):
            return None
        return _alias(parameter), parameters.of(parameter), queues.of(queue)

    Parameter._zerobubble_address = property(address)  # type: ignore[attr-defined]


def _alias(parameter: Parameter) -> Tensor:
    """Return the same alias every time, since guards compare the identities of inputs."""
    alias: Tensor | None = _aliases.get(parameter)
    if alias is None or alias.dtype != parameter.dtype or not alias.is_set_to(parameter):
        # torch.matmul folds its left operand by the weight's requires_grad flag.
        alias = _aliases[parameter] = parameter.detach().requires_grad_()
    return alias
