"""How does a user run B and W of one call of a module by hand?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from zerobubble.autograd.intercept import deferring
from zerobubble.autograd.queue import WeightQueue, move_to_main_grad


class SplitCall:
    """One forward that has been run, and its backward in two parts: first B, then W.

    Attributes:
        output: what the module returned.
        queue: what is left for W, for its ``len`` and ``nbytes``.
    """

    def __init__(self, module: Callable[..., Any], queue: WeightQueue, output: Any) -> None:
        self.output = output
        self.queue = queue
        self._module = module
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        outputs = [t for t in tensors if t.requires_grad]
        self._has_output = bool(tensors)
        self._shapes = [t.shape for t in outputs]
        self._one = torch.ones_like(outputs[0]) if [t.numel() for t in outputs] == [1] else None
        # The graph is needed for B, the memory of the outputs is the caller's to keep or free.
        self._edges: list[GradientEdge] = [get_gradient_edge(t) for t in outputs]
        self._state = "F"

    def backward_input(self, *output_gradients: Tensor | None) -> None:
        """Run B: ``backward()`` from the outputs, without the parameter gradients left to W.

        As in torch, leaves among the inputs receive their gradient in ``.grad``, and the backward
        goes on into whatever made the other ones: cut it with ``x.detach().requires_grad_()``.

        Args:
            output_gradients: one for each output tensor that requires a gradient, in order, of
                its shape, or None for a gradient of zero; none at all for a single scalar.

        Raises:
            RuntimeError: B was run before, or the output holds its tensors, if any, out of sight.
            ValueError: number or shapes of the gradients are not those of the outputs.
        """
        if self._state != "F":
            raise RuntimeError("B of this call was run before: run B once after each forward")
        if not self._has_output:
            raise RuntimeError(
                f"B finds no tensor in the output, a {type(self.output).__name__}: return tensors, "
                "also in tuples, lists or dicts, not in objects of your own"
            )
        gradients = self._checked(output_gradients)
        edges, self._edges, self._state = self._edges, [], "failed"
        given = [(e, g) for e, g in zip(edges, gradients, strict=True) if g is not None]
        if given:
            with deferring(self.queue):
                torch.autograd.backward([e for e, _ in given], [g for _, g in given])
        self._state = "B"

    def backward_weight(self) -> None:
        """Run W: add the parameter gradients that B has left to ``.grad``.

        Raises:
            RuntimeError: B was not run, W was run before, or a tensor that W needs was modified in
                place since B.
        """
        if self._state == "F":
            raise RuntimeError("W of this call before its B: run backward_input() first")
        if self._state == "failed":
            raise RuntimeError("W of this call after a B or W that failed: run its forward again")
        if self._state == "W":
            raise RuntimeError("W of this call was run before: run W once after each B")
        self._state = "failed"
        self.queue.run()
        self._state = "W"
        if self.queue.main_grad:
            assert isinstance(self._module, nn.Module), "checked before the forward"
            for parameter in self._module.parameters():
                move_to_main_grad(parameter)

    def _checked(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        if not gradients and self._one is not None:
            return [self._one]
        shapes = [None if g is None else tuple(g.shape) for g in gradients]
        expected = [tuple(shape) for shape in self._shapes]
        if len(shapes) != len(expected) or any(
            shape not in (None, wanted) for shape, wanted in zip(shapes, expected, strict=True)
        ):
            raise ValueError(
                f"backward_input takes one gradient for each output that requires one: shapes "
                f"{expected}, not {shapes}"
            )
        return list(gradients)


def splitting(
    module: Callable[..., Any], *, fused: bool = False, main_grad: bool = False
) -> Callable[..., SplitCall]:
    """Return a function that calls ``module`` so that its backward can be run as B and W.

    Any number of calls may be in flight, with their B and W in any order, each W after its own B.
    Gradients are those of a plain backward, bit for bit with the default options. What cannot be
    split is done in B: see :func:`split_report`. Source: Zero Bubble, arXiv 2401.10241, section 2.

    Args:
        module: a module, or any callable, such as one that computes the loss too.
        fused: as for :class:`WeightQueue`.
        main_grad: as for :class:`WeightQueue`; W then moves also what B added to ``.grad``.

    Raises:
        TypeError: ``main_grad`` for what is not a module: its parameters are not known.

    >>> import torch
    >>> linear, x = torch.nn.Linear(3, 2), torch.ones(4, 3, requires_grad=True)
    >>> call = splitting(linear)(x)
    >>> call.backward_input(torch.ones_like(call.output))
    >>> x.grad.shape, linear.bias.grad
    (torch.Size([4, 3]), None)
    >>> call.backward_weight()
    >>> linear.bias.grad
    tensor([4., 4.])
    """

    if main_grad and not isinstance(module, nn.Module):
        raise TypeError(
            f"main_grad needs a module, whose parameters are known, not a {type(module).__name__}"
        )

    def run(*args: Any, **kwargs: Any) -> SplitCall:
        queue = WeightQueue(fused=fused, main_grad=main_grad)
        with deferring(queue):
            output = module(*args, **kwargs)
        return SplitCall(module, queue, output)

    return run
