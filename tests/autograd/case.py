"""What is a case of a model whose backward is split, and what do the models take?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WIDTH, NUM_TOKENS, VOCABULARY = 16, 6, 20


class Case(NamedTuple):
    """Builders of a model and of the inputs of one microbatch.

    ``num_deferred`` is how many ops one microbatch leaves to W: it pins what is intercepted, where
    equal gradients cannot tell. Gradients are bitwise those of a plain backward but for parameters
    used both in split ops and in others: the sums of B and of W are added then, in another order
    than autograd's, and differ by at most ``tolerance`` of the largest gradient.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    num_deferred: int
    tolerance: float = 0.0

    def assert_same(self, actual: Tensor, expected: Tensor, key: str) -> None:
        assert (actual is None) == (expected is None), key
        if expected is not None:
            assert (actual.dtype, actual.layout) == (expected.dtype, expected.layout), key
            a, b = actual.to_dense(), expected.to_dense()
            assert torch.equal(a, b) or (a - b).abs().max() <= self.tolerance * b.abs().max(), key


def hidden() -> tuple[Tensor]:
    return (torch.randn(2, NUM_TOKENS, WIDTH),)


def half_hidden() -> tuple[Tensor]:
    return (hidden()[0].bfloat16(),)


def single() -> tuple[Tensor]:
    return (torch.randn(1, NUM_TOKENS, WIDTH),)


def tokens() -> tuple[Tensor]:
    return (torch.randint(0, VOCABULARY, (2, NUM_TOKENS)),)


def image() -> tuple[Tensor]:
    return (torch.randn(2, 3, 8, 8),)


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / 4)
