"""Which ops of an autograd graph use a parameter, and what does its gradient cost there?"""

import re
from collections import defaultdict
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from zerobubble.autograd.function import split_of

# Ops that hand a parameter on as it is, or a part of it.
_PASSING = re.compile(
    r"(Alias|Clone|Contiguous|Expand|Permute|Reshape\w*|Select|Slice|Split\w*|Squeeze|T|ToCopy"
    r"|Transpose|Unbind|UnsafeSplit\w*|UnsafeView|Unsqueeze|View)Backward\d"
)
_GEMM = re.compile(r"(Mm|Bmm|Addmm|Baddbmm)Backward\d")
_CONVOLUTION = re.compile(r"ConvolutionBackward\d")
_GROUPED = "GroupedMmBackward0"
_RECURRENT = re.compile(r"(MkldnnRnnLayer|CudnnRnn|ThnnFused\w+Cell|Miopen\w+)Backward\d")
_COSTLY = re.compile(
    "|".join(r.pattern for r in (_GEMM, _CONVOLUTION, _RECURRENT)) + f"|{_GROUPED}"
)

Edge = tuple[Any, int]


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
    uses: defaultdict[Parameter, list[Use]] = defaultdict(list)
    for node in graph_nodes(outputs):
        split = split_of(node)
        if split is not None:
            shape = _output_shape(node)
            num_flops = 0 if 0 in shape else split.num_weight_flops(shape)
            for i, parameter in enumerate(split.parameters):
                uses[parameter].append(Use(split.op, node, True, 0 if i else num_flops))
        elif not _hands_on(node):
            for place, edge in enumerate(node.next_functions):
                parameters = _parameters_behind(edge)
                num_flops = _num_flops(node, place) if parameters else 0
                for i, parameter in enumerate(parameters):
                    uses[parameter].append(Use(op_name(node), node, False, 0 if i else num_flops))
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


def _parameters_behind(edge: Edge) -> list[Parameter]:
    """List the parameters that an operand is computed from, the largest first.

    None if it is an activation: then it has other leaves, costly ops behind it or another size.
    """
    parameters: list[Parameter] = []
    pending, is_part = [edge], True
    while pending:
        node, _ = pending.pop()
        if node is None:
            continue
        variable = getattr(node, "variable", None)
        if isinstance(variable, Parameter):
            parameters.append(variable)
        elif variable is not None or split_of(node) or _is_costly(node):
            return []
        is_part &= variable is not None or _hands_on(node)
        pending.extend(node.next_functions)
    parameters.sort(key=Tensor.numel, reverse=True)
    is_weight = is_part or (parameters and prod(_shape(edge)) == parameters[0].numel())
    return parameters if is_weight else []


def _hands_on(node: Any) -> bool:
    """Whether a node hands on a part of a parameter: of a stack of matrices also those chosen."""
    if node.name() == "IndexBackward0":
        return len(_shape(node.next_functions[0])) >= 3
    return bool(_PASSING.fullmatch(node.name()))


def _is_costly(node: Any) -> bool:
    return bool(_COSTLY.fullmatch(node.name())) or "Embedding" in node.name()


def _num_flops(node: Any, place: int) -> int:
    """Count the operations of the gradient of one operand of a node."""
    shape, operand = _output_shape(node), _shape(node.next_functions[place])
    if len(operand) < 2 or 0 in shape:
        return 0
    if _GEMM.fullmatch(node.name()):
        has_bias = len(node.next_functions) == 3
        if has_bias and place == 0:
            return 0
        is_left = place == has_bias
        return 2 * prod(operand) * shape[-1 if is_left else -2]
    if node.name() == _GROUPED and len(operand) == 3:
        return 2 * prod(operand[1:]) * shape[0]
    if _CONVOLUTION.fullmatch(node.name()):
        num = prod(shape) // shape[1]
        num = num // prod(node._saved_stride) if node._saved_transposed else num
        return 2 * prod(operand) * num
    if _RECURRENT.fullmatch(node.name()):
        return 2 * prod(operand) * (prod(shape) // shape[-1])
    return 0


def _shape(edge: Edge) -> tuple[int, ...]:
    node, number = edge
    return tuple(node._input_metadata[number].shape)


def _output_shape(node: Any) -> tuple[int, ...]:
    return _shape((node, 0))
