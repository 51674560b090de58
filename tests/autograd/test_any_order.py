"""Does each microbatch get its plain gradients in whatever order F, B and W run?

``.grad`` is taken away after every op, so that what a microbatch adds is seen by itself: sums over
microbatches are then those of a plain backward in the order of the additions.
"""

import functools
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_cases import CASES
from torch.utils._pytree import tree_leaves

from zerobubble.autograd import WeightQueue, deferring

NUM_MICROBATCHES = 3

# The n-th occurrence of a microbatch is its F, B or W.
ORDERS = st.permutations(list(range(NUM_MICROBATCHES)) * 3)


class _Microbatch:
    """One microbatch of a case; without a queue it is plain autograd."""

    def __init__(self, case, model, number, queue):
        self.case, self.model, self.number, self.queue = case, model, number, queue
        self.parts = {}
        self.steps = iter((self.forward, self.backward, self.weight))

    def deferring(self):
        return nullcontext() if self.queue is None else deferring(self.queue)

    def forward(self):
        torch.manual_seed(self.number)
        self.inputs = [
            x.requires_grad_() if x.is_floating_point() else x for x in self.case.inputs()
        ]
        with self.deferring():
            outputs = tree_leaves(self.model(*self.inputs))
        self.outputs = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
        self.gradients = [torch.randn_like(y) for y in self.outputs]

    def backward(self):
        with self.deferring():
            torch.autograd.backward(self.outputs, self.gradients)
        self.outputs = None

    def weight(self):
        if self.queue is not None:
            self.queue.run()

    def step(self):
        next(self.steps)()
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                earlier = self.parts.get(name)
                self.parts[name] = p.grad if earlier is None else earlier + p.grad
                p.grad = None

    def results(self):
        inputs = {f"input {i}": x.grad for i, x in enumerate(self.inputs) if x.requires_grad}
        return self.parts | inputs


def _build(name):
    torch.manual_seed(1)
    return CASES[name].build()


@functools.cache
def _plain(name):
    model = _build(name)
    microbatches = [_Microbatch(CASES[name], model, i, None) for i in range(NUM_MICROBATCHES)]
    for microbatch in microbatches:
        for _ in range(3):
            microbatch.step()
    return [microbatch.results() for microbatch in microbatches]


def _split(name, order):
    model, queues = _build(name), [WeightQueue() for _ in range(NUM_MICROBATCHES)]
    microbatches = [_Microbatch(CASES[name], model, i, queue) for i, queue in enumerate(queues)]
    for number in order:
        microbatches[number].step()
    return [microbatch.results() for microbatch in microbatches]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=5, deadline=None)
@given(order=ORDERS)
def test_gradients_of_each_microbatch_are_plain(name, order):
    for actual, expected in zip(_split(name, order), _plain(name), strict=True):
        assert actual.keys() == expected.keys()
        for key, b in expected.items():
            CASES[name].assert_same(actual[key], b, key)
