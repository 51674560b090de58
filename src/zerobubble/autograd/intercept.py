"""Which calls are caught while a module runs, and which queue do they belong to?"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from zerobubble.autograd import address, compiled
from zerobubble.autograd.function import Op
from zerobubble.autograd.ops import SITES
from zerobubble.autograd.patching import Patches
from zerobubble.autograd.queue import WeightQueue


class _Here(threading.local):
    queue: WeightQueue | None = None


_here = _Here()
_lock = threading.Lock()
_active: dict[object, WeightQueue | None] = {}  # of all threads, in the order in which they entered
_latest: WeightQueue | None = None


class deferring:
    """Leave the parameter gradients of ops on parameters to ``queue``.

    Active around a module's forward, it makes these ops remember the queue; active around the
    backward (B), it lets activation checkpointing do the same when it recomputes. Blocks nest, the
    innermost queue counts, and the last one to be left restores every patched function.
    Handled: the functions of ``ops.SITES`` (linear, matrix products, einsum, convolutions,
    embedding) with a trainable leaf ``Parameter``, or a view of one, as weight and without tensor
    hooks. Everything else keeps its gradients in B. So does code that torch.compile has made, but
    for linear, embedding and the functions matmul, mm and addmm; biases stay in B.
    Source: Zero Bubble, arXiv 2401.10241, section 2.

    Raises:
        RuntimeError: from a backward with ``create_graph=True`` through a handled op.

    >>> import torch
    >>> weight, queue = torch.nn.Parameter(torch.eye(2)), WeightQueue()
    >>> x = torch.ones(3, 2, requires_grad=True)
    >>> with deferring(queue):
    ...     (x @ weight).sum().backward()
    >>> x.grad is None, weight.grad is None
    (False, True)
    >>> queue.run()
    >>> weight.grad
    tensor([[3., 3.],
            [3., 3.]])
    """

    # Entered twice for every microbatch: a generator would take three times as long.
    __slots__ = ("_outer", "_queue")

    def __init__(self, queue: WeightQueue) -> None:
        self._queue = queue

    def __enter__(self) -> WeightQueue:
        self._outer = _here.queue
        _enter(self, self._queue)
        _here.queue = self._queue
        return self._queue

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._queue.copy_shared_gradients()
        finally:
            _here.queue = self._outer
            _leave(self)


@contextmanager
def ready_to_defer() -> Iterator[None]:
    """Make the blocks of :func:`deferring` inside cheaper to enter; defer nothing by itself.

    Functions are patched at the start and restored at the end, not at every block.
    """
    token = object()
    _enter(token, None)
    try:
        yield
    finally:
        _leave(token)


def _enter(token: object, queue: WeightQueue | None) -> None:
    global _latest
    with _lock:
        if not _active:
            _patches.apply()
        _active[token] = queue
        if queue is not None:
            _latest = queue


def _leave(token: object) -> None:
    global _latest
    with _lock:
        del _active[token]
        _latest = None
        for queue in _active.values():
            if queue is not None:
                _latest = queue
        if not _active:
            _patches.restore()


@functools.cache  # the same object every time: a compiled module is guarded on its identity
def _intercepted(original: Op, handler: Op) -> Op:
    traced = compiled.traced(original.__name__, handler)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return traced(original, *args, **kwargs)
        if is_plain_autograd():
            queue = current_queue()
            if queue is not None:
                out = handler(original, queue, *args, **kwargs)
                if out is not NotImplemented:
                    return out
        return original(*args, **kwargs)

    return call


_patches = Patches(
    (owner, name, functools.partial(_intercepted, handler=handler))
    for owner, name, handler in SITES
)


def is_plain_autograd() -> bool:
    """Whether a graph is recorded and nothing but autograd transforms the calls."""
    return (
        torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def current_queue() -> WeightQueue | None:
    """Return this thread's queue, in a thread of autograd's own the last one entered, or None."""
    if _here.queue is None and _latest is not None and _is_of_autograd():
        return _latest
    return _here.queue


def _is_of_autograd() -> bool:
    """Say whether autograd has started this thread, to run a backward for a device."""
    in_backward = torch._C._current_graph_task_id() != -1
    return in_backward and isinstance(threading.current_thread(), threading._DummyThread)


address.provide_addresses(current_queue)
