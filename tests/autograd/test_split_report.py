"""Does the report count every FLOP and name what stays in B?"""

import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from split_cases import CASES, Checkpointed, GPTBlock, OwnFunction
from torch import nn
from torch.nn.functional import linear as imported_before
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import zerobubble as zb


def _reasons(report):
    return {row.parameter: row.reason for row in report.rows}


def test_gpt_block_of_width_512_leaves_all_flops_to_w():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    report = zb.split_report(layer, torch.randn(1, 32, 512))
    num_rows, matrices = 32, 512 * (3 * 512 + 512 + 2048 + 2048)
    assert sum(row.flops_in_w for row in report.rows) == 2 * num_rows * matrices
    assert report.deferred_share == 1.0
    assert report.summary == "100% of parameter-gradient FLOPs in W; norms in B"
    in_b = {name for name, reason in _reasons(report).items() if reason}
    assert in_b == {f"norm{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__.lower())
def test_cells_stay_in_b(kind):
    report = zb.split_report(
        nn.Sequential(kind(8, 8), _First(), nn.Linear(8, 8)), torch.ones(5, 2, 8)
    )
    num_gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    in_w, in_b = 2 * 10 * 64, 2 * 10 * 64 * 2 * num_gates
    assert sum(row.flops_in_b for row in report.rows) == in_b
    assert report.deferred_share == in_w / (in_w + in_b)
    assert re.match(r"(LSTM|GRU|RNN_TANH) cells: no split for aten::", report.rows[0].reason)
    assert report.rows[-1].reason == ""


class _First(nn.Module):
    def forward(self, values):
        return values[0]


class _Call(nn.Module):
    """A function of a parameter and an input."""

    def __init__(self, function, *shape):
        super().__init__()
        self.p, self.function = nn.Parameter(torch.randn(shape or (4, 4))), function

    def forward(self, x):
        return self.function(x, self.p)


def _hooked():
    linear = nn.Linear(4, 4, bias=False)
    linear.weight.register_hook(lambda g: g)
    return linear


class _Subclass(nn.Parameter):
    pass


def _with_subclass():
    linear = nn.Linear(4, 4, bias=False)
    linear.weight = _Subclass(torch.randn(4, 4))
    return linear


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_hooked, "parameters with a tensor hook: it must see the gradient in B"),
        (_with_subclass, "parameters of class _Subclass: used through a tensor subclass"),
        (partial(_Call, lambda x, p: x * p[0]), "aten::mul: cheap, kept in B on purpose"),
        (partial(_Call, imported_before), "aten::mm: no split for this way to call it"),
        (
            partial(_Call, lambda x, p: x),
            "parameters without use: this call has no gradient for them",
        ),
        (partial(nn.LayerNorm, 4), "norms: cheap, kept in B on purpose"),
        (
            lambda: weight_norm(nn.Linear(4, 4, bias=False)),
            "parametrized weights: the parameter is not an operand itself",
        ),
    ],
)
def test_reason_to_stay_in_b(build, reason):
    report = zb.split_report(build(), torch.randn(3, 4, requires_grad=True))
    assert _reasons(report)[report.rows[0].parameter] == reason


def test_reasons_of_other_kinds():
    report = zb.split_report(nn.Embedding(9, 4, sparse=True), torch.tensor([1]))
    assert report.rows[0].reason.startswith("sparse or renormalized embeddings:")
    report = zb.split_report(OwnFunction(), torch.randn(1, 2, 16))
    assert report.rows[0].reason == "autograd function CountedProduct: its backward is a whole"
    report = zb.split_report(
        Checkpointed(use_reentrant=True), torch.randn(1, 6, 16).requires_grad_()
    )
    reason = "parameters in a reentrant checkpoint: their use is seen in B only"
    assert {row.reason for row in report.rows} == {reason}


def test_grouped_product_in_b_counts_as_in_w():
    def run(x, p):
        return F.grouped_mm(x, p, offs=torch.tensor([3, 8], dtype=torch.int32))

    model, x = _Call(run, 2, 4, 12), torch.randn(8, 4)
    num_flops = 2 * 8 * 4 * 12
    assert zb.split_report(model, x).rows[0][1:] == (num_flops, 0, "")
    model.p.register_hook(lambda g: g)
    assert zb.split_report(model, x).rows[0][1:3] == (0, num_flops)


def test_chosen_matrices_of_a_stack_are_weights_and_chosen_rows_of_a_matrix_activations():
    linear = nn.Linear(4, 4)
    chosen = torch.tensor([0, 2, 2])
    report = zb.split_report(_Call(lambda x, p: x @ p[chosen], 3, 4, 4), torch.randn(3, 1, 4))
    assert report.rows[0][1:3] == (0, 2 * 3 * 4 * 4)
    report = zb.split_report(_Call(lambda x, p: imported_before(p[x], linear.weight), 9, 4), chosen)
    assert report.rows[0] == ("p", 0, 0, "aten::index: cheap, kept in B on purpose")


def test_compiled_code_is_not_counted_and_the_report_says_so():
    layers = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Linear(4, 4), backend="aot_eager"))
    report = zb.split_report(layers, torch.randn(3, 4))
    outside, _, weight, bias = report.rows
    assert outside[1:] == (2 * 3 * 4 * 4, 0, "")
    text = "compiled code: FLOPs not counted, and W has linear, embedding and the functions matmul"
    assert weight[1:3] == bias[1:3] == (0, 0)
    assert weight.reason == f"parameters not seen in {text}, mm and addmm"
    assert bias.reason == f"parameters in {text}, mm and addmm"


@pytest.mark.parametrize("first", ["split", "in B"])
def test_activation_of_parameters_alone_is_no_weight(first):
    """Its gradient is what B is for, even if it has the size of the parameter behind it."""
    linear = nn.Linear(8, 8, bias=False)

    def run(x, p):
        h = F.linear(x, p) if first == "split" else imported_before(x, p)
        return imported_before(h, linear.weight)

    model = _Call(run, 8, 8)
    model.linear = linear
    report = zb.split_report(model, torch.randn(8, 8))
    num_flops = 2 * 8 * 8 * 8
    in_w = num_flops if first == "split" else 0
    assert report.rows[0][1:3] == (in_w, num_flops - in_w)
    assert report.rows[1][1:3] == (0, num_flops)


def test_checkpoint_that_is_not_reentrant_is_seen_and_not_recomputed():
    model = Checkpointed()
    assert zb.split_report(model, torch.randn(1, 6, 16)).deferred_share == 1.0
    assert [block.num_runs for block in model.blocks] == [1, 1]


# torch counts all channels for a group, what a user's function does, and nothing for LSTM and
# grouped_mm; and a checkpoint cannot be asked for gradients by name.
COUNTED_OTHERWISE = set(
    "conv1d_depthwise conv_transpose2d convolutions own_function recurrent gru "
    "grouped grouped_transposed grouped_columns "
    "reentrant_checkpoint checkpoint autocast_checkpoint autocast_reentrant".split()
)
WITH_INPUT_GRADIENT = sorted(
    name for name, case in CASES.items() if case.inputs()[0].is_floating_point()
)


@pytest.mark.parametrize("name", [n for n in WITH_INPUT_GRADIENT if n not in COUNTED_OTHERWISE])
def test_flops_are_those_that_torch_counts(name):
    """Count a plain backward with all gradients, and one with those of the inputs only."""
    model = CASES[name].build()
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in CASES[name].inputs()]
    report = zb.split_report(model, *inputs)
    leaves = [y for y in tree_leaves(model(*inputs)) if _needs_gradient(y)]
    ones, wanted = [torch.ones_like(y) for y in leaves], [x for x in inputs if x.requires_grad]
    with FlopCounterMode(display=False) as all_gradients:
        torch.autograd.backward(leaves, ones, retain_graph=True)
    with FlopCounterMode(display=False) as of_inputs:
        torch.autograd.grad(leaves, wanted, ones, allow_unused=True)
    num_flops = all_gradients.get_total_flops() - of_inputs.get_total_flops()
    assert sum(row.flops_in_w + row.flops_in_b for row in report.rows) == num_flops


def _needs_gradient(y):
    return isinstance(y, torch.Tensor) and y.requires_grad


def test_report_leaves_no_trace():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random_state = torch.get_rng_state()
    zb.split_report(model, torch.randn(8, 4))
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())
    state = torch.get_rng_state()
    torch.set_rng_state(random_state)
    torch.randn(8, 4)
    assert torch.equal(torch.get_rng_state(), state)


class _Counting(nn.Module):
    """Binds buffers anew, writes into others, adds one, and may fail then."""

    def __init__(self, fails):
        super().__init__()
        self.norm, self.fails = nn.BatchNorm1d(4), fails
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("other", None)

    def forward(self, x):
        self.count = self.other = self.count + 1
        self.register_buffer("late", x)
        x = self.norm(x)
        if self.fails:
            raise RuntimeError("fails")
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_are_put_back_when_bound_anew_and_when_the_forward_fails(fails):
    model = _Counting(fails)
    before = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}
    with pytest.raises(RuntimeError, match="fails") if fails else nullcontext():
        zb.split_report(model, torch.randn(8, 4))
    after = dict(model.named_buffers())
    assert after.keys() == before.keys()
    for name, buffer in after.items():
        assert buffer is before[name], name
        assert torch.equal(buffer, values[name]), name


def test_a_function_is_refused_in_one_line():
    with pytest.raises(TypeError) as caught:
        zb.split_report(lambda x: x, torch.ones(2))
    assert str(caught.value) == (
        "split_report takes an nn.Module, whose parameters have names, not a function: "
        "pass the module that it calls"
    )


@pytest.mark.parametrize("in_w", [True, False])
def test_convolution_without_channels_has_no_flops(in_w):
    model = _Call(lambda x, p: F.conv1d(x, p), 3, 0, 1)
    if not in_w:
        model.p.register_hook(lambda g: g)
    [row] = zb.split_report(model, torch.randn(2, 0, 4)).rows
    assert row[1:3] == (0, 0)
    assert (row.reason == "") == in_w


def test_table_of_a_block():
    assert str(zb.split_report(GPTBlock(), torch.randn(2, 6, 16))).splitlines() == [
        "100% of parameter-gradient FLOPs in W",
        "W   73.7 kFLOP  8 parameters",
        "B       0 FLOP  4 parameters (norm1.weight, ..., norm2.bias): norms: cheap, kept in B on "
        "purpose",
    ]
