"""What waits between B and W, and how does it reach ``.grad``?"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter


class WeightGradient(Protocol):
    """How W finds the gradients of one use of an op's parameters."""

    op: str
    parameters: tuple[Parameter, ...]

    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        """Return one new gradient per parameter, given the op's input and output gradient."""

    def add_to(self, gradient: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...] | None:
        """Add the first parameter's gradient within a GEMM and return the others'.

        None, and nothing added, where that cannot be done.
        """


class _Item(NamedTuple):
    weight_gradient: WeightGradient
    x: Tensor
    dy: Tensor
    x_version: int
    dy_version: int

    def check(self) -> None:
        """Raise if a tensor was written in place after B: its gradient would be wrong."""
        for name, tensor, version in (
            ("input", self.x, self.x_version),
            ("output gradient", self.dy, self.dy_version),
        ):
            if tensor._version != version:
                raise RuntimeError(
                    f"W of {self.weight_gradient.op}: its {name} of shape {tuple(tensor.shape)} "
                    f"was modified in place after B (version {tensor._version}, expected "
                    f"{version}): run W before the modification, or modify a clone"
                )


class WeightQueue:
    """Hold the parameter gradients that one stage and microbatch still owes after B.

    Every parameter's contributions in a queue are added up in the order in which B produced them,
    and their sum is added to ``.grad``: one accumulation, as in a plain backward.
    Source: Zero Bubble, arXiv 2401.10241, section 2.

    >>> import torch
    >>> from zerobubble.autograd import WeightQueue, deferring
    >>> linear, queue = torch.nn.Linear(3, 2), WeightQueue()
    >>> with deferring(queue):
    ...     linear(torch.ones(4, 3)).sum().backward()
    >>> len(queue), queue.nbytes, linear.weight.grad
    (1, 52, None)
    >>> queue.run()
    >>> len(queue), linear.bias.grad
    (0, tensor([4., 4.]))

    Args:
        fused: let the GEMM of a weight add to ``.grad`` itself (``addmm_``), without memory for
            the product. Rounds in another order than a plain backward once the GEMM sums in
            blocks: 1.4e-7 of the largest gradient in float32 (512 rows and more), 7e-3 in
            bfloat16.
        main_grad: add to the float32 buffer ``parameter.main_grad``, made when missing, in place
            of ``.grad``; post-accumulate-grad hooks find it up to date.
    """

    def __init__(self, *, fused: bool = False, main_grad: bool = False) -> None:
        self.fused = fused
        self.main_grad = main_grad
        self._items: deque[_Item] = deque()
        self._num_private = 0

    def __len__(self) -> int:
        """Return the number of ops whose W is pending."""
        return len(self._items)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that pending items hold; a shared storage counts once."""
        storages = (tensor.untyped_storage() for tensor in self.tensors())
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that pending items hold."""
        return (tensor for item in self._items for tensor in (item.x, item.dy))

    def push(self, weight_gradient: WeightGradient, x: Tensor, dy: Tensor) -> None:
        """Add one op's W: its input ``x`` and output gradient ``dy``, outside any graph."""
        self._items.append(_Item(weight_gradient, x, dy, x._version, dy._version))

    def copy_shared_gradients(self) -> None:
        """Copy the output gradients of the last B whose storage is held outside the queue too.

        Plain autograd lends an output gradient only until B ends, so others may write to it later:
        a parameter that is added to the output can own it as its ``.grad``, through a view, and
        adds the next microbatch in place.
        """
        if self._num_private == len(self._items):
            return
        new = list(enumerate(self._items))[self._num_private :]
        self._num_private = len(self._items)
        shared = [(i, item) for i, item in new if _num_users(item.dy) > 1 and item.dy.numel()]
        if not shared:
            return
        held = Counter(t.untyped_storage()._cdata for _, item in new for t in (item.x, item.dy))
        for i, item in shared:
            if _num_users(item.dy) > held[item.dy.untyped_storage()._cdata]:
                dy = _copy(item.dy)
                self._items[i] = item._replace(dy=dy, dy_version=dy._version)

    @torch.no_grad()
    def run(self) -> None:
        """Add the pending gradients to ``.grad``, freeing each item as soon as it is done.

        Raises:
            RuntimeError: a saved tensor was modified in place since B; no ``.grad`` has changed.
        """
        self._check()
        num_left = Counter(p for item in self._items for p in item.weight_gradient.parameters)
        once = {parameter for parameter, num in num_left.items() if num == 1}
        sums: dict[Parameter, Tensor] = {}
        self._num_private = 0
        while self._items:
            for parameter, new in self._gradients(self._items.popleft(), once):
                earlier = sums.pop(parameter, None)
                total = new if earlier is None else _add(earlier, new)
                num_left[parameter] -= 1
                if num_left[parameter]:
                    sums[parameter] = total
                else:
                    self._accumulate(parameter, total)

    def _check(self) -> None:
        for item in self._items:
            item.check()

    def _gradients(self, item: _Item, once: set[Parameter]) -> list[tuple[Parameter, Tensor]]:
        """Return what is still to be added up; the item and its tensors are done with."""
        weight_gradient, x, dy, *_ = item
        parameters = weight_gradient.parameters
        if self.fused and parameters[0] in once:
            others = self._run_fused(item)
            if others is not None:
                return list(zip(parameters[1:], others, strict=True))
        return list(zip(parameters, weight_gradient(x, dy), strict=True))

    def _run_fused(self, item: _Item) -> tuple[Tensor, ...] | None:
        """Add the weight's gradient within the GEMM and return those of the other parameters."""
        weight_gradient, x, dy, *_ = item
        weight = weight_gradient.parameters[0]
        stored = _main_grad(weight) if self.main_grad else weight.grad
        if not weight.requires_grad or weight._backward_hooks:
            return None
        if stored is None or stored.layout is not torch.strided:
            return None
        others = weight_gradient.add_to(stored, x, dy)
        if others is not None:
            _call_hooks(weight)
        return others

    def _accumulate(self, parameter: Parameter, gradient: Tensor) -> None:
        """Do what autograd does at a leaf: call hooks, cast, add or take over, call more hooks.

        What has been done to the parameter since F counts: it may have been frozen or hooked.
        """
        if not parameter.requires_grad:
            return
        gradient = _hooked(parameter, gradient)
        stored = _main_grad(parameter) if self.main_grad else parameter.grad
        if stored is None:
            parameter.grad = _as_stored(parameter, gradient)
        elif stored.layout is torch.strided:
            stored.add_(gradient if gradient.dtype == stored.dtype else gradient.to(stored.dtype))
        else:
            parameter.grad = gradient + stored
        _call_hooks(parameter)


def move_to_main_grad(parameter: Parameter) -> None:
    """Add ``.grad`` to the float32 buffer ``.main_grad`` and drop it, if there is one."""
    if parameter.grad is not None:
        _main_grad(parameter).add_(parameter.grad)
        parameter.grad = None


def _main_grad(parameter: Parameter) -> Tensor:
    buffer: Tensor | None = getattr(parameter, "main_grad", None)
    if buffer is None:
        buffer = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        parameter.main_grad = buffer  # type: ignore[attr-defined]
    return buffer


def _add(total: Tensor, new: Tensor) -> Tensor:
    return total.add_(new) if total.dtype == new.dtype else total + new


def _hooked(parameter: Parameter, gradient: Tensor) -> Tensor:
    hooks = parameter._backward_hooks
    for hook in tuple(hooks.values()) if hooks else ():
        replaced = hook(gradient)
        gradient = gradient if replaced is None else replaced
    return gradient


def _call_hooks(parameter: Parameter) -> None:
    hooks = parameter._post_accumulate_grad_hooks
    for hook in tuple(hooks.values()) if hooks else ():
        hook(parameter)


def _as_stored(parameter: Parameter, gradient: Tensor) -> Tensor:
    """Return the gradient with the parameter's dtype and strides, copied only if they differ."""
    if gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride():
        return gradient.detach()
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def _num_users(tensor: Tensor) -> int:
    """Count the tensors on this storage; the Python storage object is a user of its own."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1


def _copy(tensor: Tensor) -> Tensor:
    """Copy with the very strides, even overlapping ones: a GEMM's rounding depends on them."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in strides)
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride(), 0)
