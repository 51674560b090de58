"""Does an einsum over any labels, sizes and order of the output give the gradients of torch?"""

from contextlib import nullcontext

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from zerobubble.autograd import WeightQueue, deferring

TERMS = st.lists(st.sampled_from("abcdXY"), min_size=1, max_size=5, unique=True)


@st.composite
def equations(draw):
    """Draw the terms of both operands and of the output, or None for the implicit one."""
    first, second = draw(TERMS), draw(TERMS)
    labels = sorted({*first, *second})
    output = draw(st.none() | st.lists(st.sampled_from(labels), unique=True))
    equation = f"{''.join(first)},{''.join(second)}"
    sizes = {label: draw(st.sampled_from([1, 2, 3, 5, 17])) for label in labels}
    shapes = [[sizes[label] for label in term] for term in (first, second)]
    return equation if output is None else f"{equation}->{''.join(output)}", shapes


def _gradients(equation, shapes, weight_first, split):
    torch.manual_seed(0)
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    weight = not weight_first
    operands[weight] = nn.Parameter(operands[weight].detach())
    queue = WeightQueue()
    with deferring(queue) if split else nullcontext():
        y = torch.einsum(equation, *operands)
        y.sin().backward(torch.randn_like(y))
    queue.run()
    return [y, *(operand.grad for operand in operands)]


@settings(max_examples=300, deadline=None)
@given(case=equations(), weight_first=st.booleans())
def test_gradients_are_those_of_torch(case, weight_first):
    plain, split = (_gradients(*case, weight_first, split) for split in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, split, strict=True))
