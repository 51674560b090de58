"""Are gradients bitwise equal where a GEMM sums in blocks and convolutions change algorithm?"""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zerobubble.autograd import WeightQueue, deferring

CALLS = {
    "linear": (lambda x, w: F.linear(x, w), (3, 300, 260), (290, 260)),
    "matmul": (lambda x, w: x @ w, (3, 300, 260), (260, 290)),
    "matmul_left": (lambda x, w: w @ x, (300, 310), (290, 300)),
    "matmul_left_of_batch": (lambda x, w: w @ x, (3, 300, 310), (290, 300)),
    "bmm": (lambda x, w: x.bmm(w), (2, 300, 290), (2, 290, 310)),
    "einsum": (lambda x, w: torch.einsum("btd,hdk->bhtk", x, w), (2, 300, 260), (3, 260, 70)),
    "einsum_swapped": (lambda x, w: torch.einsum("btd,od->obt", x, w), (2, 300, 260), (290, 260)),
    "embedding": (lambda x, w: F.embedding(x.argsort(-1), w), (3, 400), (400, 64)),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding="same"), (4, 64, 300), (70, 64, 5)),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2), (4, 64, 40, 40), (70, 64, 3, 3)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=64), (4, 64, 40, 40), (64, 1, 3, 3)),
    "conv3d": (lambda x, w: F.conv3d(x, w), (2, 16, 12, 12, 12), (20, 16, 3, 3, 3)),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w), (4, 64, 20, 20), (64, 40, 3, 3)),
}


def _gradients(name, dtype, split):
    torch.manual_seed(0)
    call, shape, weight_shape = CALLS[name]
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    weight, queue = nn.Parameter(torch.randn(weight_shape, dtype=dtype)), WeightQueue()
    with deferring(queue) if split else nullcontext():
        y = call(x, weight)
        y.backward(torch.randn_like(y))
    assert len(queue) == split
    queue.run()
    return x.grad, weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_large_operands_are_bitwise_equal(name, dtype):
    plain, split = (_gradients(name, dtype, split) for split in (False, True))
    for a, b in zip(plain, split, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)
