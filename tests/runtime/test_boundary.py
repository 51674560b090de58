"""Do values survive the way over a stage boundary?"""

import pytest
import torch

from zerobubble.errors import UsageError
from zerobubble.runtime.boundary import Layout, TensorSpec, flatten

CONSTANTS = (None, True, 3, 0.5, "text")


def test_tensors_and_constants_are_put_back_in_their_places():
    first, second = torch.ones(2), torch.zeros(3, dtype=torch.int64)
    value = {"a": (first, None, [True, 2]), "b": second, "c": "mode"}
    tensors, layout = flatten(value, "the value")
    assert [t is s for t, s in zip(tensors, (first, second), strict=True)] == [True, True]
    rebuilt = layout.build(tensors)
    assert rebuilt.keys() == value.keys()
    assert rebuilt["a"][0] is first
    assert rebuilt["a"][1:] == (None, [True, 2])
    assert rebuilt["b"] is second
    assert rebuilt["c"] == "mode"


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_needs_no_tensor(constant):
    tensors, layout = flatten(constant, "the value")
    assert tensors == []
    assert layout.tensors == layout.gradients == ()
    assert layout.build([]) == constant


def test_only_tensors_that_need_a_gradient_get_one_back():
    value = (torch.ones(2, 3, requires_grad=True), torch.ones(4), torch.ones(5, dtype=torch.bool))
    _, layout = flatten(value, "the value")
    assert layout.gradients == (TensorSpec((2, 3), torch.float32, True),)
    assert layout.tensors[2].allocate(torch.device("cpu")).dtype is torch.bool


def test_layouts_are_equal_for_equal_shapes_only():
    def of(*shape, **options) -> Layout:
        return flatten((torch.ones(shape, **options), 1), "x")[1]

    assert of(2, 3) == of(2, 3)
    different = [of(3, 2), of(2, 3, dtype=torch.float64), of(2, 3, requires_grad=True)]
    assert of(2, 3) not in different


@pytest.mark.parametrize("value", [object(), (torch.ones(1), {1, 2}), [1j]])
def test_anything_else_is_refused_by_its_type(value):
    with pytest.raises(UsageError, match=r"the output holds a (object|set|complex): only tensors"):
        flatten(value, "the output")


def test_a_layout_is_described_in_one_line():
    value = {"h": torch.ones(2, 3, requires_grad=True), "ids": (torch.arange(4), None), "k": 0.5}
    assert str(flatten(value, "x")[1]) == "(float32[2, 3] with gradient, int64[4], None, 0.5)"
