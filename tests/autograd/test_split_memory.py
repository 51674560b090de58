"""How many bytes does a microbatch hold after F, after B and after W?

Counted are the storages of all tensors that are alive, the graph's too, but for parameters, buffers
and gradients that have been handed out in ``.grad``.
"""

from typing import NamedTuple

import pytest
import torch
from split_cases import CASES
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zerobubble as zb

# After B nothing is held but the input and the output gradient of each op, which W needs: see
# `test_b_leaves_only_what_w_needs`. Where that is more than F held, it is inherent.
HOLD_MORE_AFTER_B = {
    # F saves the input of each product only, and nothing between products that B could free.
    "chains of products": "addmm frozen layouts lists mixed products column_major",
    # The same with an activation whose saved output is the next input already.
    "activations that save an operand": "called_twice in_place thrice twice two_ops tied_head "
    "embedding_and_input",
    # Convolutions with a rectifier between, in place or saving what is the next input.
    "convolutions": "conv2d_channels_last convolutions",
    # F saves the block's input; B recomputes all the rest, and W needs a part of it.
    "checkpoints": "checkpoint reentrant_checkpoint autocast_checkpoint autocast_reentrant",
}
# Where the groups of rows end: the split itself holds it.
OFFSET_BYTES = dict.fromkeys(("grouped", "grouped_transposed", "grouped_columns"), 3 * 4)
NAMES_HOLD_MORE = set(" ".join(HOLD_MORE_AFTER_B.values()).split())


class LiveStorages(TorchDispatchMode):
    """Follows the storages of all outputs of ops, without keeping them."""

    def __init__(self):
        super().__init__()
        self.storages = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        for tensor in _tensors(outputs):
            storage = tensor.untyped_storage()
            known = self.storages.get(storage._cdata)
            if known is None or known[0].expired():
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return outputs

    def num_bytes(self, besides):
        """Count the bytes alive, without those of the tensors ``besides``."""
        excluded = {t.untyped_storage()._cdata for t in _tensors(besides)}
        return sum(
            num_bytes
            for key, (reference, num_bytes) in self.storages.items()
            if key not in excluded and not reference.expired()
        )


class Held(NamedTuple):
    """Bytes alive after F, B and W; after B also without the inputs, and those of the queue."""

    after_f: int
    after_b: int
    after_w: int
    without_inputs: int
    in_queue: int


def _tensors(values):
    leaves = tree_leaves(values)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.layout is torch.strided]


def _held(model, inputs=()):
    parameters = list(model.parameters())
    gradients = [t.grad for t in [*parameters, *inputs]]
    return [*parameters, *model.buffers(), *gradients, torch.zeros(())]


def _step(case, model, live):
    """Run one microbatch; return the bytes held after F, after B and after W."""
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in case.inputs()]
    call = zb.splitting(model)(*inputs)
    after_f = live.num_bytes(_held(model))
    outputs = [y for y in _tensors(call.output) if y.requires_grad]
    gradients = [torch.ones_like(y) for y in outputs]
    call.output = outputs = None
    call.backward_input(*gradients)
    gradients = None
    after_b = live.num_bytes(_held(model, inputs))
    inputs = None
    of_queue, needed = live.num_bytes(_held(model)), call.queue.nbytes
    call.backward_weight()
    return Held(after_f, after_b, live.num_bytes(_held(model)), of_queue, needed)


def _held_by_second_step(name):
    """The first step makes what lives as long as the model or the process: it is not counted."""
    model = CASES[name].build()
    for _ in range(2):
        with LiveStorages() as live:
            held = _step(CASES[name], model, live)
    return held


@pytest.mark.parametrize("name", CASES)
def test_b_holds_no_more_than_f_and_w_nothing(name):
    held = _held_by_second_step(name)
    assert held.after_w == 0
    assert (held.after_b > held.after_f) == (name in NAMES_HOLD_MORE)


@pytest.mark.parametrize("name", CASES)
def test_b_leaves_only_what_w_needs(name):
    held = _held_by_second_step(name)
    assert held.without_inputs == held.in_queue + OFFSET_BYTES.get(name, 0)


@pytest.mark.parametrize("name", ["gpt", "checkpoint", "mixed", "convolutions", "gru", "hooked"])
def test_fifty_steps_hold_what_one_holds(name):
    model = CASES[name].build()
    with LiveStorages() as live:
        steps = [_step(CASES[name], model, live) for _ in range(50)]
    assert set(steps[1:]) == {steps[1]}
    assert steps[1].after_w == 0
