"""Does B compute norms, activations and dropout again with the same bits, and what is kept?"""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from case import WIDTH, hidden
from split_cases import CASES, GPTBlock, LlamaBlock
from test_split_memory import LiveStorages, _held
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from zerobubble import Pipeline, build
from zerobubble.autograd import (
    WeightQueue,
    deferring,
    ready_to_recompute_light,
    recomputing_light,
)
from zerobubble.autograd.light import _patches

NUM_MICROBATCHES = 3
HEADS = 4


class OwnNorm(nn.Module):
    """A norm of several ops, as in Hugging Face's models."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.num_runs = 0

    def forward(self, x):
        self.num_runs += 1
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class NewActivation(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))


class BufferNorm(nn.Module):
    """Changes what it computes with."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.add_(x.detach().mean((0, 1)))
        return (x - self.mean).exp() * self.mean.clone()


class SecondHalf(nn.Module):
    def forward(self, x):
        return F.silu(x)[..., WIDTH:]


class Scaled(nn.Module):
    """Writes to what an activation has returned."""

    def forward(self, x):
        return F.gelu(x).mul_(2.0)


def between(*middle):
    """Put layers between two products; the second one saves what the last of them returns."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle, nn.Linear(WIDTH, WIDTH))


def light(is_on=True):
    return recomputing_light() if is_on else nullcontext()


def bits(case, is_light, splits):
    """Run three microbatches, all F first; list outputs and all gradients."""
    torch.manual_seed(1)
    model, found, graphs = case.build(), [], []
    for _ in range(NUM_MICROBATCHES):
        queue = WeightQueue()
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in case.inputs()]
        with deferring(queue) if splits else nullcontext(), light(is_light):
            leaves = tree_leaves(model(*inputs))
        outputs = [y for y in leaves if isinstance(y, torch.Tensor)]
        found += [y.detach().clone() for y in outputs]
        outputs = [y for y in outputs if y.requires_grad]
        graphs.append((queue, inputs, outputs, [torch.randn_like(y) for y in outputs]))
    for queue, inputs, outputs, gradients in graphs:
        with deferring(queue) if splits else nullcontext():
            torch.autograd.backward(outputs, gradients)
        found += [x.grad for x in inputs]
    for queue, *_ in graphs:
        queue.run()
    return found + [p.grad for p in model.parameters()]


def assert_same_bits(case, splits):
    for a, b in zip(bits(case, True, splits), bits(case, False, splits), strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a.to_dense(), b.to_dense())


@pytest.mark.parametrize("name", CASES)
def test_gradients_have_the_bits_of_a_split_backward_without(name):
    assert_same_bits(CASES[name], splits=True)


@pytest.mark.parametrize("name", ["gpt_dropout", "llama", "autocast", "in_place", "experts"])
def test_gradients_have_the_bits_of_a_plain_backward_without(name):
    assert_same_bits(CASES[name], splits=False)


LAYERS = {
    "norms": lambda: (nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.GELU()),
    "own norm": lambda: (OwnNorm(), NewActivation()),
    "buffers": lambda: (BufferNorm(),),
    "in place": lambda: (nn.ReLU(True), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5, True)),
    "dropouts": lambda: (nn.Dropout(0.3), nn.Tanh(), nn.AlphaDropout(0.3), nn.Dropout(0.0)),
    "dropout in evaluation": lambda: (nn.GELU(), nn.Dropout(0.3).eval()),
    "parts": lambda: (nn.Linear(WIDTH, 2 * WIDTH), SecondHalf()),
    "written to": lambda: (Scaled(),),
    "gated": lambda: (nn.Linear(WIDTH, 2 * WIDTH), nn.GLU(), nn.PReLU()),
}


class Cast(nn.Sequential):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.parametrize("kind", [nn.Sequential, Cast], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layers", LAYERS)
def test_chains_have_the_same_bits(layers, kind):
    case = CASES["gpt"]._replace(build=lambda: kind(*between(*LAYERS[layers]())))
    assert_same_bits(case, splits=False)
    assert_same_bits(case, splits=True)


def held(model, x, is_light=True):
    """Count the bytes that the second forward holds for its backward, its input among them."""
    for _ in range(2):
        with LiveStorages() as live, deferring(WeightQueue()), light(is_light):
            y = model(x.clone().requires_grad_())
            edge = get_gradient_edge(y)
            y = None
            num_bytes = live.num_bytes(_held(model))
        del edge
    return num_bytes


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_a_gpt_block_keeps_20_bytes_of_34_for_each_channel(rate):
    """In units of bsh at two bytes a number, with flash attention: PipeOffload, section 3.2.

    Light keeps x, q, k, v, what attention returns, x + attention, and 4 h of the MLP: 10 numbers.
    Without it there are both norms and GELU besides, and a mask for each dropout, which on the CPU
    has the dtype of x.
    """
    model, (x,) = GPTBlock(rate), hidden()
    log_sum_exp = HEADS * x[..., 0].numel() * x.element_size()
    norms = 2 * 2 * x[..., 0].numel() * x.element_size()
    assert held(model, x) == 10 * x.nbytes + log_sum_exp
    num_masks = 2 if rate else 0
    plain = (16 + num_masks) * x.nbytes + log_sum_exp + norms
    assert held(model, x, is_light=False) == plain


def test_a_gated_block_drops_norms_and_the_activation_but_not_the_product():
    """On the CPU, each RMSNorm saves what it has normalized beside what it returns."""
    model, (x,) = LlamaBlock(), hidden()
    ffn = 40 * x[..., 0].numel() * x.element_size()
    norms = 2 * (2 * x.nbytes + x[..., 0].numel() * x.element_size())
    assert held(model, x, is_light=False) - held(model, x) == norms + ffn


def test_a_chain_keeps_its_first_input_alone():
    chain = (NewActivation(), nn.Dropout(0.3), OwnNorm(), nn.GELU(), nn.Dropout(0.3))
    (x,) = hidden()
    assert held(between(*chain), x) == 2 * x.nbytes
    assert held(between(*chain), x, is_light=False) > 9 * x.nbytes


def test_dropout_at_the_end_of_a_branch_keeps_nothing():
    model, (x,) = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)), hidden()
    assert held(model, x) == x.nbytes
    assert held(model, x, is_light=False) == 2 * x.nbytes


def test_a_cast_of_what_is_computed_again_is_computed_again_too():
    (x,) = hidden()
    model = Cast(*between(nn.LayerNorm(WIDTH)))
    in_bfloat16 = x.nbytes // 2
    assert held(model, x) == x.nbytes + 2 * in_bfloat16 + _cast_bytes(model)


def _cast_bytes(model):
    """Autocast saves the weights it has cast, for the input gradient."""
    return sum(p.nbytes // 2 for p in model.parameters() if p.dim() == 2)


def test_a_call_is_made_again_once_and_only_in_b():
    norm, (x,) = OwnNorm(), hidden()
    heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    with recomputing_light():
        h = norm(x.requires_grad_())
        y = sum(head(h) for head in heads)
    assert norm.num_runs == 1
    y.sum().backward()
    assert norm.num_runs == 2


def test_a_second_backward_through_a_kept_graph_gives_the_same():
    model, (x,) = between(nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.2)), hidden()
    with recomputing_light():
        y = model(x.requires_grad_()).sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_an_output_that_is_used_again_after_a_backward_inside():
    norm, linear, (x,) = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), hidden()
    found = []
    for is_light in (False, True):
        with light(is_light):
            h = norm(x.requires_grad_())
            linear(h).sum().backward()
            found.append(torch.autograd.grad(linear(h.detach()).sin().sum(), linear.weight)[0])
    assert torch.equal(*found)


def test_draws_after_the_block_and_after_b_are_those_of_a_run_without():
    drawn = []
    for is_light in (False, True):
        torch.manual_seed(3)
        with light(is_light):
            y = between(nn.Dropout(0.2))(hidden()[0])
        drawn.append(torch.rand(2))
        y.sum().backward()
        drawn.append(torch.rand(2))
    assert torch.equal(torch.cat(drawn[:2]), torch.cat(drawn[2:]))


@pytest.mark.parametrize("norm", [nn.LayerNorm(WIDTH), OwnNorm()], ids=["torch", "own"])
@pytest.mark.parametrize("changed", ["weight", "bias", "input"])
def test_what_was_modified_since_f_is_refused(norm, changed):
    (x,) = hidden()
    with recomputing_light():
        h = x.requires_grad_() * 1
        y = nn.Linear(WIDTH, WIDTH)(norm(h))
    tensor = h if changed == "input" else getattr(norm, changed, norm.weight)
    with torch.no_grad():
        tensor.add_(1)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: .* version \d, expected"
    ):
        y.sum().backward()


def test_kept_tensors_that_are_modified_are_refused_as_without():
    for is_light in (False, True):
        (x,) = hidden()
        with light(is_light):
            y = x.requires_grad_().exp()
            z = y.sin()
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_an_output_that_is_modified_later_is_computed_as_it_was():
    """Plain autograd refuses it, since it keeps the very tensor."""
    model, (x,) = between(nn.GELU()), hidden()
    expected = gradient_of_step(model, x, nullcontext(), modify=False)
    found = gradient_of_step(model, x, recomputing_light(), modify=True)
    assert torch.equal(found, expected)


def gradient_of_step(model, x, block, modify):
    model.zero_grad()
    with block:
        h = model[1](model[0](x))
        y = model[2](h)
    if modify:
        h.detach().add_(1)
    y.sum().backward()
    return model[0].weight.grad.clone()


def test_what_stays_goes_through_the_hooks_around_and_nothing_else():
    """The hooks hand back copies, as another memory would."""
    model, (x,) = between(nn.LayerNorm(WIDTH), nn.GELU()), hidden()
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor)
        return tensor.detach().clone()

    def unpack(copy):
        unpacked.append(copy)
        return copy

    with saved_tensors_hooks(pack, unpack), recomputing_light():
        y = model(x.requires_grad_())
    storages = {t.untyped_storage()._cdata for t in packed}
    of_model = {p.untyped_storage()._cdata for p in model.parameters()}
    assert len(storages - of_model) == 2, "x and what the first product returns"
    assert x.untyped_storage()._cdata in storages
    y.sum().backward()
    assert len(unpacked) == len(packed)
    found = model[0].weight.grad.clone()
    assert torch.equal(found, gradient_of_plain_step(model, x))


def gradient_of_plain_step(model, x):
    model.zero_grad()
    model(x).sum().backward()
    return model[0].weight.grad


def test_a_checkpointed_region_inside_runs_again_as_ever():
    model, (x,) = CASES["checkpoint"].build(), hidden()
    x.requires_grad_()
    assert held(model, x) == held(model, x, is_light=False)
    with recomputing_light():
        y = model(x)
    runs = [block.num_runs for block in model.blocks]
    y.sum().backward()
    assert [block.num_runs - before for block, before in zip(model.blocks, runs, strict=True)] == [
        1,
        1,
    ]


def test_hooks_of_a_norm_are_called_once():
    calls, (x,) = [], hidden()
    for norm in (OwnNorm(), nn.LayerNorm(WIDTH)):
        norm.register_forward_hook(lambda *_: calls.append(1))
        with recomputing_light():
            y = nn.Linear(WIDTH, WIDTH)(norm(x))
        y.sum().backward()
    assert len(calls) == 2


def test_compiled_code_keeps_what_it_saves():
    torch.manual_seed(0)
    model, (x,) = between(nn.LayerNorm(WIDTH), OwnNorm(), nn.GELU()), hidden()
    expected = gradient_of_plain_step(model, x).clone()
    model.zero_grad()
    with recomputing_light():
        y = torch.compile(model, backend="aot_eager")(x)
    y.sum().backward()
    assert torch.equal(model[0].weight.grad, expected)


def test_vmap_inside_is_left_alone():
    (x,) = hidden()
    with recomputing_light():
        y = torch.vmap(F.gelu)(x.requires_grad_())
    y.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(F.gelu(x).sum(), x)[0])


class MoodyNorm(nn.Module):
    mood = 0

    def forward(self, x):
        MoodyNorm.mood += 1
        return x.exp() if MoodyNorm.mood == 1 else x.exp().sin()


def test_a_call_that_depends_on_more_than_its_inputs_is_refused():
    with recomputing_light():
        y = between(MoodyNorm())(hidden()[0])
    with pytest.raises(RuntimeError, match="MoodyNorm saved 1 tensors in F but 2 when run again"):
        y.sum().backward()


def test_every_function_is_put_back():
    sites = (
        (F, "gelu"),
        (F, "dropout"),
        (torch, "relu"),
        (torch.Tensor, "to"),
        (nn.Module, "__call__"),
    )
    before = [getattr(*site) for site in sites]
    with recomputing_light(), recomputing_light():
        inside = [getattr(*site) for site in sites]
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert before == [getattr(*site) for site in sites]


def test_blocks_inside_of_ready_leave_the_functions_replaced():
    original = F.gelu
    with ready_to_recompute_light():
        ready = F.gelu
        for _ in range(2):
            with recomputing_light():
                assert F.gelu is ready
            assert F.gelu is ready
    assert ready is not original
    assert F.gelu is original


def test_a_step_of_a_pipeline_replaces_functions_once(monkeypatch):
    calls = []

    def note(name, run):
        calls.append(name)
        run()

    for name in ("apply", "restore"):
        original = getattr(_patches, name)
        monkeypatch.setattr(_patches, name, partial(note, name, original))
    layers = [nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)]
    schedule = build("1f1b", num_ranks=1, num_microbatches=3)
    for recompute, expected in (("light", ["apply", "restore"]), ("off", [])):
        calls.clear()
        pipe = Pipeline(layers, schedule, nn.functional.mse_loss, recompute=recompute)
        pipe.step(torch.ones(3, 4), torch.ones(3, 4))
        assert calls == expected


@pytest.mark.parametrize("name", ["gpt_dropout", "llama", "autocast", "checkpoint"])
def test_fifty_steps_hold_what_one_holds(name):
    model = CASES[name].build()
    found = []
    with LiveStorages() as live:
        for _ in range(50):
            queue = WeightQueue()
            with deferring(queue), recomputing_light():
                y = model(*(x.requires_grad_() for x in CASES[name].inputs())).sum()
            with deferring(queue):
                y.backward()
            queue.run()
            del y
            found.append(live.num_bytes(_held(model)))
    assert set(found[1:]) == {0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layers", ["norms", "own norm", "dropouts", "in place"])
def test_chains_have_the_same_bits_on_a_cuda_device(layers):
    case = CASES["gpt"]._replace(
        build=lambda: nn.Sequential(*between(*LAYERS[layers]())).cuda(),
        inputs=lambda: (hidden()[0].cuda(),),
    )
    assert_same_bits(case, splits=True)
