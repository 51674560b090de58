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

from torch import Size, Tensor

from zerobubble.autograd.function import Op
from zerobubble.autograd.operands import Source, is_dense, source_of
from zerobubble.autograd.ops.batches import split_bmm
from zerobubble.autograd.queue import WeightQueue

_EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)(?:->([a-zA-Z]*))?")


class _Folding(NamedTuple):
    """How an operand becomes a batch of matrices, and its gradient an operand's again.

    Labels that the operand lacks are dimensions of size 1, as in torch: a GEMM depends on strides.
    """

    order: list[int]
    folded: list[int]

    def fold(self, operand: Tensor) -> Tensor:
        for _ in range(len(self.order) - operand.dim()):
            operand = operand.unsqueeze(-1)
        return operand.permute(self.order).reshape(self.folded)

    def unfold(self, shape: Size, gradient: Tensor) -> Tensor:
        order = [i for i in self.order if i < len(shape)]
        inverse = sorted(range(len(shape)), key=order.__getitem__)
        return gradient.reshape([shape[i] for i in order]).permute(inverse)


class _Plan(NamedTuple):
    """How one einsum runs as a bmm."""

    first: _Folding
    second: _Folding
    swapped: bool  # the second operand is the left one
    labels: list[str]  # of the unfolded product, those summed over with size 1
    output: list[str]
    sizes: dict[str, int]

    def unfold_output(self, y: Tensor) -> Tensor:
        y = y.view([self.sizes[label] for label in self.labels])
        kept = [self.labels.index(label) for label in self.output]
        summed = [i for i in range(len(self.labels)) if i not in kept]
        return y.permute(kept + summed).view([self.sizes[label] for label in self.output])


def einsum(op: Op, queue: WeightQueue, equation: Any, *operands: Any, **options: Any) -> Any:
    """Split ``torch.einsum`` of two operands that have a label to sum over in common."""
    if options or len(operands) != 2 or not all(map(is_dense, operands)):
        return NotImplemented
    for is_first in (False, True):
        weight, x = operands if is_first else reversed(operands)
        source = source_of(weight)
        plan = None if source is None else _parse(equation, *operands)
        if source is not None and plan is not None:
            return _run(queue, plan, x, weight, source, is_first)
    return NotImplemented


def _run(
    queue: WeightQueue, plan: _Plan, x: Tensor, weight: Tensor, source: Source, is_first: bool
) -> Tensor:
    of_weight, of_x = (plan.first, plan.second) if is_first else (plan.second, plan.first)
    on_left = is_first is not plan.swapped
    restore = partial(_restore, source, of_weight, weight.shape)
    folded, source = of_weight.fold(weight.detach()), Source(source.parameter, restore)
    y = split_bmm("einsum", queue, of_x.fold(x), folded, source, on_left=on_left)
    return plan.unfold_output(y)


def _restore(source: Source, folding: _Folding, shape: Size, gradient: Tensor) -> Tensor:
    unfolded = folding.unfold(shape, gradient)
    return unfolded if source.restore is None else source.restore(unfolded)


def _parse(equation: Any, first: Tensor, second: Tensor) -> _Plan | None:
    terms = _terms(equation, first, second)
    return None if terms is None else _plan(*terms, first.shape + second.shape)


def _plan(a: str, b: str, output: str, shapes: Size) -> _Plan | None:
    """Sort the labels into groups; None for what is not one bmm without sums before it."""
    sizes = dict(zip(a + b, shapes, strict=True))
    wide_a, wide_b = ({label for label in term if sizes[label] != 1} for term in (a, b))
    summed = sorted((set(a) | set(b)) - set(output))
    inner = [label for label in summed if label in wide_a & wide_b]
    outer = [label for label in [*output, *summed] if label not in inner]
    if not inner or any(sizes[label] != 1 for label in outer if label in summed):
        return None
    batch = [label for label in outer if label in wide_a & wide_b]
    rows = [label for label in outer if label in wide_a - wide_b]
    columns = [label for label in outer if label not in wide_a]
    swapped = bool(rows and columns) and outer.index(columns[-1]) < outer.index(rows[0])
    left, right = (b, a) if swapped else (a, b)
    if swapped:
        rows, columns = columns, rows
    foldings = (
        _fold(left, (batch, rows, inner), columns, sizes),
        _fold(right, (batch, inner, columns), rows, sizes),
    )
    first, second = reversed(foldings) if swapped else foldings
    labels = [*batch, *rows, *inner, *columns]
    return _Plan(first, second, swapped, labels, [*output], sizes | dict.fromkeys(inner, 1))


def _fold(
    term: str, groups: tuple[list[str], ...], missing: list[str], sizes: dict[str, int]
) -> _Folding:
    order = [label for group in (*groups, missing) for label in group]
    lacking = iter(range(len(term), len(order)))
    places = [term.index(label) if label in term else next(lacking) for label in order]
    return _Folding(places, [prod(sizes[label] for label in group) for group in groups])


def _terms(equation: Any, first: Tensor, second: Tensor) -> tuple[str, str, str] | None:
    match = _EQUATION.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    if match is None:
        return None
    a, b, output = match.groups()
    if output is None:
        output = "".join(label for label in sorted(a + b) if (a + b).count(label) == 1)
    repeated = any(len(set(term)) != len(term) for term in (a, b, output))
    if repeated or not set(output) <= set(a + b) or (len(a), len(b)) != (first.dim(), second.dim()):
        return None
    if any(first.shape[a.index(c)] != second.shape[b.index(c)] for c in set(a) & set(b)):
        return None
    return a, b, output
