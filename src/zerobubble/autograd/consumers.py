"""Which ops of an autograd graph use a parameter, and what does its gradient cost there?"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from zerobubble.autograd.function import split_of

# Ops that hand a parameter on: its gradient is computed by what comes after them.
_PASSING = re.compile(
    r"(Alias|Clone|Contiguous|Expand|Permute|Reshape\w*|Select|Slice|Split\w*|Squeeze|T|ToCopy"
    r"|Transpose|Unbind|UnsafeSplit\w*|UnsafeView|Unsqueeze|View)Backward\d"
)
_GEMM = re.compile(r"(Mm|Bmm|Addmm|Baddbmm)Backward\d")
_RECURRENT = re.compile(r"(MkldnnRnnLayer|CudnnRnn|ThnnFused\w+Cell|Miopen\w+)Backward\d")


class Use(NamedTuple):
    """One op that computes a gradient of a parameter: in W if it is split, else in B."""

    op: str
    node: Any
    in_w: bool
    num_flops: int


def uses_of_parameters(outputs: Iterable[Tensor]) -> dict[Parameter, list[Use]]:
    """Find every use of a parameter in the graph behind ``outputs``, without running it.

    FLOPs are those of the parameter's gradient in matrix products, convolutions and recurrent
    layers, two for each multiplication; other ops count nothing.
    """
    consumers: defaultdict[Any, list[tuple[Any, int]]] = defaultdict(list)
    uses: defaultdict[Parameter, list[Use]] = defaultdict(list)
    for node in graph_nodes(outputs):
        split = split_of(node)
        if split is not None:
            num_flops = split.num_weight_flops(_output_shape(node))
            for i, parameter in enumerate(split.parameters):
                uses[parameter].append(Use(split.op, node, True, 0 if i else num_flops))
        for place, (source, _) in enumerate(node.next_functions):
            if source is not None:
                consumers[source].append((node, place))
    for leaf in list(consumers):
        if isinstance(getattr(leaf, "variable", None), Tensor):
            for node, place in _final(leaf, consumers):
                num_flops = _num_flops(node, place, leaf.variable)
                uses[leaf.variable].append(Use(op_name(node), node, False, num_flops))
    return dict(uses)


def graph_nodes(outputs: Iterable[Tensor]) -> list[Any]:
    """List the nodes of the graph behind ``outputs``."""
    pending = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen: dict[Any, None] = {}
    while pending:
        node: Any = pending.pop()
        if node not in seen:
            seen[node] = None
            pending.extend(source for source, _ in node.next_functions if source is not None)
    return list(seen)


def op_name(node: Any) -> str:
    """Name the op behind a node: ``aten::mm``, or a user's autograd function."""
    name = re.sub(r"Backward\d*$", "", node.name())
    if isinstance(node, BackwardCFunction):
        return str(name)
    return "aten::" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _final(source: Any, consumers: dict[Any, list[tuple[Any, int]]]) -> Iterator[tuple[Any, int]]:
    """Yield the nodes, with the place of the operand, that use what ``source`` hands on."""
    for node, place in consumers.get(source, ()):
        if _PASSING.fullmatch(node.name()):
            yield from _final(node, consumers)
        elif split_of(node) is None:
            yield node, place


def _num_flops(node: Any, place: int, parameter: Tensor) -> int:
    """Count the operations of the parameter's gradient at a node."""
    shape, size = _output_shape(node), parameter.numel()
    if parameter.dim() < 2:
        return 0
    if _GEMM.fullmatch(node.name()):
        has_bias = len(node.next_functions) == 3
        if has_bias and place == 0:
            return 0
        is_left = place == has_bias
        return 2 * size * shape[-1 if is_left else -2]
    if node.name().startswith("ConvolutionBackward"):
        num = prod(shape) // shape[1]
        return 2 * size * (num // prod(node._saved_stride) if node._saved_transposed else num)
    if _RECURRENT.fullmatch(node.name()):
        return 2 * size * (prod(shape) // shape[-1])
    return 0


def _output_shape(node: Any) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)
