"""Are the gradients of B and W bit for bit those of a plain backward?"""

from contextlib import nullcontext

import pytest
import torch
from split_cases import CASES, CountedProduct
from torch.utils._pytree import tree_leaves

from zerobubble.autograd import WeightQueue, deferring

NUM_MICROBATCHES = 3


class _Step:
    """One training step; without an order it is plain autograd."""

    def __init__(self, case, order=None):
        torch.manual_seed(1)
        self.model, self.case, self.order = case.build(), case, order
        self.results = {}
        self.queues = [WeightQueue() for _ in range(NUM_MICROBATCHES)]
        graphs = []
        for microbatch in range(NUM_MICROBATCHES):
            graphs.append(self._forward(microbatch))
            if order != "all F first":
                self._backward(microbatch, *graphs.pop())
        for microbatch, graph in enumerate(graphs):
            self._backward(microbatch, *graph)
        for queue in self.queues:
            queue.run()
        for name, p in self.model.named_parameters():
            self.results[name] = p.grad

    def _deferring(self, microbatch):
        return deferring(self.queues[microbatch]) if self.order else nullcontext()

    def _forward(self, microbatch):
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in self.case.inputs()]
        with self._deferring(microbatch):
            outputs = _tensors(self.model(*inputs))
        for i, y in enumerate(outputs):
            self.results[f"output {i} of {microbatch}"] = y.detach().clone()
        outputs = [y for y in outputs if y.requires_grad]
        return inputs, outputs, [torch.randn_like(y) for y in outputs]

    def _backward(self, microbatch, inputs, outputs, gradients):
        with self._deferring(microbatch):
            torch.autograd.backward(outputs, gradients)
        if self.order == "W at once":
            self.queues[microbatch].run()
        for i, x in enumerate(inputs):
            self.results[f"gradient of input {i} of {microbatch}"] = x.grad


def _tensors(outputs):
    return [y for y in tree_leaves(outputs) if isinstance(y, torch.Tensor)]


def _assert_same(name, order):
    expected, actual = _Step(CASES[name]).results, _Step(CASES[name], order).results
    assert actual.keys() == expected.keys()
    for key, b in expected.items():
        CASES[name].assert_same(actual[key], b, key)
        assert b is None or b.is_sparse or actual[key].stride() == b.stride(), key


@pytest.mark.parametrize("order", ["W after the last B", "W at once"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_plain_backward(name, order):
    _assert_same(name, order)


@pytest.mark.parametrize("name", ["gpt_dropout", "llama", "tied_head", "autocast", "experts"])
def test_gradients_equal_plain_backward_when_every_f_is_first(name):
    _assert_same(name, "all F first")


@pytest.mark.parametrize("name", CASES)
def test_expected_ops_are_left_to_w(name):
    model, inputs, queue = CASES[name].build(), CASES[name].inputs(), WeightQueue()
    with deferring(queue):
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
        outputs = [y for y in _tensors(model(*inputs)) if y.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    assert len(queue) == CASES[name].num_deferred


@pytest.mark.parametrize("name", ["checkpoint", "reentrant_checkpoint"])
def test_each_checkpointed_block_is_recomputed_once(name):
    model, queue = CASES[name].build(), WeightQueue()
    (x,) = CASES[name].inputs()
    with deferring(queue):
        y = model(x.requires_grad_())
    assert [block.num_runs for block in model.blocks] == [1, 1]
    with deferring(queue):
        y.sum().backward()
    assert [block.num_runs for block in model.blocks] == [2, 2]
    queue.run()
    assert [block.num_runs for block in model.blocks] == [2, 2]


def test_own_function_runs_backward_once_per_microbatch():
    CountedProduct.num_backwards = 0
    _Step(CASES["own_function"], "W after the last B")
    assert CountedProduct.num_backwards == NUM_MICROBATCHES


def test_gpt_block_leaves_only_norms_to_b():
    model, queue = CASES["gpt"].build(), WeightQueue()
    with deferring(queue):
        model(*CASES["gpt"].inputs()).sum().backward()
    in_b = {name for name, p in model.named_parameters() if p.grad is not None}
    assert in_b == {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}
    queue.run()
    assert all(p.grad is not None for p in model.parameters())


def test_parameter_with_deferred_and_plain_uses_agrees_to_rounding():
    x, weights = torch.randn(3, 8, 6), []
    for split in (False, True):
        torch.manual_seed(2)
        weight, queue = torch.nn.Parameter(torch.randn(6, 6)), WeightQueue()
        for microbatch in x:
            with deferring(queue) if split else nullcontext():
                y = (microbatch @ weight).tanh() + weight.sum() * (microbatch @ weight.t())
                y.sum().backward()
            queue.run()
        weights.append(weight.grad)
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-5)
