"""How many bytes does a microbatch hold after F, after B and after W?

Counted are the storages of all tensors that are alive, the graph's too, but for parameters, buffers
and gradients that have been handed out in ``.grad``.
"""

import pytest
import torch
from split_cases import CASES
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zerobubble as zb

# After F, a matrix product holds its input; after B, W needs its output's gradient as well. Where
# nothing else is saved in between, as in a chain of products, or where F saves nothing, as in a
# checkpoint, that is more than F held.
HOLD_MORE_AFTER_B = set(
    "addmm called_twice checkpoint column_major conv2d_channels_last convolutions "
    "embedding_and_input frozen in_place layouts lists mixed products reentrant_checkpoint "
    "thrice tied_head twice two_ops".split()
)


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
    call.backward_weight()
    return after_f, after_b, live.num_bytes(_held(model))


@pytest.mark.parametrize("name", CASES)
def test_b_holds_no_more_than_f_and_w_nothing(name):
    model = CASES[name].build()
    with LiveStorages() as live:
        _step(CASES[name], model, live)  # makes what lives as long as the model
        after_f, after_b, after_w = _step(CASES[name], model, live)
    assert after_w == 0
    assert (after_b > after_f) == (name in HOLD_MORE_AFTER_B)


@pytest.mark.parametrize("name", ["gpt", "checkpoint", "mixed", "convolutions", "gru", "hooked"])
def test_fifty_steps_hold_what_one_holds(name):
    model = CASES[name].build()
    with LiveStorages() as live:
        steps = [_step(CASES[name], model, live) for _ in range(50)]
    assert set(steps[1:]) == {steps[1]}
    assert steps[1][2] == 0
