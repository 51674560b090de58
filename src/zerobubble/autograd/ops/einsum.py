"""How is an einsum split? As the one ``bmm`` that ``torch.einsum`` turns two operands into.

Labels fall into four groups, each folded to one dimension: ``batch`` is in both operands and in the
output, ``rows`` in the left one, ``columns`` in the right one, ``inner`` is summed over. Then
``left (batch, rows, inner)`` times ``right (batch, inner, columns)`` is the output, unfolded.
Source: ``sumproduct_pair`` in ATen/native/Linear.cpp.
"""

import re
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from zerobubble.autograd.function import Op
from zerobubble.autograd.operands import Source, is_dense, source_of
from zerobubble.autograd.ops.batches import split_bmm, split_of_batches
from zerobubble.autograd.queue import WeightQueue

_EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)(?:->([a-zA-Z]*))?")


class _Folding(NamedTuple):
    """How an operand becomes a batch of matrices, and its gradient an operand's again."""

    order: list[int]
    folded: list[int]

    def fold(self, operand: Tensor) -> Tensor:
        return operand.permute(self.order).reshape(self.folded)

    def unfold(self, shape: Size, gradient: Tensor) -> Tensor:
        inverse = sorted(range(len(shape)), key=self.order.__getitem__)
        return gradient.reshape([shape[i] for i in self.order]).permute(inverse)


class _Plan(NamedTuple):
    """How one einsum runs as a bmm."""

    left: _Folding
    right: _Folding
    labels: str  # of the unfolded product
    sizes: dict[str, int]
    output: str
    swapped: bool = False  # the second operand is on the left

    def unfold_output(self, y: Tensor) -> Tensor:
        y = y.view([self.sizes[label] for label in self.labels])
        return y.permute([self.labels.index(label) for label in self.output])


def einsum(op: Op, queue: WeightQueue, equation: Any, *operands: Any, **options: Any) -> Any:
    """Split ``torch.einsum`` of two operands that have a label to sum over in common."""
    if options or len(operands) != 2 or not all(map(is_dense, operands)):
        return NotImplemented
    for on_left in (False, True):
        weight, x = operands if on_left else reversed(operands)
        source = source_of(weight)
        plan = None if source is None else _parse(equation, *operands)
        if source is not None and plan is not None:
            return _run(queue, plan, x, weight, source, on_left)
    return NotImplemented


def _run(
    queue: WeightQueue, plan: _Plan, x: Tensor, weight: Tensor, source: Source, on_left: bool
) -> Tensor:
    on_left ^= plan.swapped
    of_weight, of_x = (plan.left, plan.right) if on_left else (plan.right, plan.left)
    restore = partial(_restore, source, of_weight, weight.shape)
    split = split_of_batches("einsum", Source(source.parameter, restore), on_left=on_left)
    folded = of_weight.fold(weight.detach())
    y = split_bmm(torch.bmm, queue, of_x.fold(x), folded, split, on_left=on_left)
    return plan.unfold_output(y)


def _restore(source: Source, folding: _Folding, shape: Size, gradient: Tensor) -> Tensor:
    unfolded = folding.unfold(shape, gradient)
    return unfolded if source.restore is None else source.restore(unfolded)


def _parse(equation: Any, left: Tensor, right: Tensor) -> _Plan | None:
    terms = _terms(equation, left, right)
    return None if terms is None else _plan(*terms, left, right)


def _plan(a: str, b: str, output: str, left: Tensor, right: Tensor) -> _Plan | None:
    """Sort the labels into groups; None for what is not one bmm without sums before it."""
    sizes = dict(zip(a + b, left.shape + right.shape, strict=True))
    wide_a, wide_b = ({label for label in term if sizes[label] != 1} for term in (a, b))
    summed = sorted((set(a) | set(b)) - set(output))
    inner = [label for label in summed if label in wide_a & wide_b]
    narrow = [label for label in summed if label not in inner]
    if not inner or any(sizes[label] != 1 for label in narrow):
        return None
    batch = [label for label in output if label in wide_a & wide_b]
    rows = [label for label in output if label in wide_a - wide_b]
    columns = [label for label in output if label not in wide_a]
    if rows and columns and output.index(columns[-1]) < output.index(rows[0]):
        plan = _plan(b, a, output, right, left)
        return None if plan is None else plan._replace(swapped=True)
    sides = (
        (a, [*batch, *rows, *inner, *columns, *narrow], (batch, rows, inner)),
        (b, [*batch, *inner, *columns, *rows, *narrow], (batch, inner, columns)),
    )
    foldings = [
        _Folding(
            [term.index(label) for label in order if label in term],
            [prod(sizes[label] for label in group) for group in groups],
        )
        for term, order, groups in sides
    ]
    return _Plan(*foldings, "".join(batch + rows + columns), sizes, output)


def _terms(equation: Any, left: Tensor, right: Tensor) -> tuple[str, str, str] | None:
    match = _EQUATION.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    if match is None:
        return None
    a, b, output = match.groups()
    if output is None:
        output = "".join(label for label in sorted(a + b) if (a + b).count(label) == 1)
    repeated = any(len(set(term)) != len(term) for term in (a, b, output))
    if repeated or not set(output) <= set(a + b) or (len(a), len(b)) != (left.dim(), right.dim()):
        return None
    if any(left.shape[a.index(c)] != right.shape[b.index(c)] for c in set(a) & set(b)):
        return None
    return a, b, output
