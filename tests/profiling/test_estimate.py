"""Are FLOPs, bytes and times of an estimate those of closed forms and of the same layers run?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.profiling.models import (
    CONFIG,
    REFERENCE,
    Joined,
    NeedingValues,
    Pair,
    Returning,
    counting,
    model_of,
)
from zerobubble.errors import UsageError
from zerobubble.profile import LayerCosts
from zerobubble.profiling import A100, H100, estimate
from zerobubble.profiling.estimate import layer_work
from zerobubble.profiling.layers import Profiled, profile_layers
from zerobubble.profiling.one_layer import Boundary, LayerRun, count_held
from zerobubble.profiling.roofline import FusedAttention, Roofline
from zerobubble.runtime.boundary import flatten
from zerobubble.runtime.partition import build_layer
from zerobubble.train.config import ModelConfig
from zerobubble.train.layers import parameter_counts
from zerobubble.train.model import Block

SIZE = 2


def on_meta(module, *shape, dtype=torch.float32):
    """Give a module without values, and the task of running it as a layer in the middle."""
    x = torch.empty(*shape, dtype=dtype, device="meta", requires_grad=True)
    tensors, layout = flatten(x, "x")
    boundary = Boundary((tensors[0].detach(),), layout)
    return module.to("meta", dtype), LayerRun(1, shape[0], boundary)


def flops(module, *shape):
    with FusedAttention():
        split, plain = (
            layer_work(*on_meta(module, *shape), H100, splits_backward=splits)
            for splits in (True, False)
        )
    assert plain.backward_input.flops == split.backward_input.flops + split.backward_weight.flops
    return tuple(part.flops for part in split)


@pytest.mark.parametrize(("dim", "sequence", "batch"), [(32, 16, 2), (64, 128, 1)])
def test_flops_of_a_block_are_those_of_the_paper(dim, sequence, batch):
    """Table 1 of arXiv 2401.10241; fused attention computes its matrix once more in B."""
    config = ModelConfig(dim=dim, heads=2, sequence=sequence, ffn_multiple=4)
    weights, tokens = 4 * dim**2 + 3 * dim * 4 * dim, batch * sequence
    forward, backward_input, backward_weight = flops(Block(config), batch, sequence, dim)
    assert forward == tokens * (2 * weights + 4 * sequence * dim)
    assert backward_input == tokens * (2 * weights + (8 + 2) * sequence * dim)
    assert backward_weight == tokens * 2 * weights


class GroupedQueries(nn.Module):
    """Attention of eight heads over keys and values of two, with a mask or without."""

    def __init__(self, is_masked=False):
        super().__init__()
        self.is_masked = is_masked

    def forward(self, x):
        query, key = x.unflatten(-1, (8, -1)).transpose(1, 2), x[..., :32].unflatten(-1, (2, -1))
        key = key.transpose(1, 2)
        mask = torch.zeros(x.shape[1], x.shape[1], device=x.device) if self.is_masked else None
        options = {"attn_mask": mask, "enable_gqa": True, "is_causal": not self.is_masked}
        attended = F.scaled_dot_product_attention(query, key, key, **options)
        return attended.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_of_grouped_queries_counts_every_query_head(is_masked):
    forward, *_ = flops(GroupedQueries(is_masked), 3, 16, 128)
    assert forward == 3 * 4 * 16 * 16 * 128


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((64, 16), (4, 16, 32), 2 * 64 * 16 * 32),  # every token has one expert
        ((16, 64), (64, 32), 2 * 64 * 16 * 32),  # the gradient of the experts' weights
        ((4, 64, 16), (4, 16, 32), 2 * 4 * 64 * 16 * 32),
    ],
)
def test_flops_of_experts_are_counted(left, right, expected):
    operands = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in (left, right)]
    ends = (
        None if len(left) == len(right) == 3 else torch.empty(4, dtype=torch.int32, device="meta")
    )
    with Roofline(H100) as roofline:
        torch.ops.aten._grouped_mm(*operands, ends)
    assert roofline.take().flops == expected


def test_attention_saves_no_matrix_of_positions():
    def saved(length):
        with FusedAttention():
            return count_held(*on_meta(GroupedQueries(), 1, length, 128)).activation_bytes

    assert saved(4096) == pytest.approx(2 * saved(2048), rel=1e-3)


def held_on_cpu(model, size):
    """Run all layers for real and count what they hold."""

    def run(module, tasks):
        held = {n: count_held(module, task) for n, task in tasks.items()}
        return {n: Profiled(LayerCosts(**h.as_costs(tasks[n])), h.output) for n, h in held.items()}

    return profile_layers(
        model, [size], lambda n: build_layer(model.layers[n], n, 0), run, lambda t: t
    )[size]


COUNTED = (
    "activation_bytes",
    "kept_bytes",
    "input_bytes",
    "saved_input_bytes",
    "kept_input_bytes",
    "output_bytes",
)


class Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


LAYERS = [lambda: nn.Linear(16, 16), Gelu, nn.Tanh, Gelu, lambda: nn.Linear(16, 16, bias=False)]
PLAIN = model_of(*LAYERS, sample=lambda n: (torch.ones(n, 5, 16), torch.ones(n, 5, 16)))


@pytest.mark.parametrize(("model", "slack"), [(PLAIN, 0), (REFERENCE, 24)])
def test_bytes_are_those_that_the_ledger_counts_on_the_cpu(model, slack):
    """The GPU's attention saves two seeds and an offset beside what that of the CPU does."""
    estimated = estimate(model, H100, [SIZE], dtype=torch.float32).at(SIZE)
    for name, layer, counted in zip(
        model.layer_names, estimated, held_on_cpu(model, SIZE), strict=True
    ):
        for each in COUNTED:
            difference = getattr(layer, each) - getattr(counted, each)
            assert 0 <= difference <= slack, f"{each} of {name}"


def test_the_inputs_of_a_layer_are_counted_apart():
    first, second, tanh, *_ = estimate(PLAIN, H100, [SIZE], dtype=torch.float32).at(SIZE)
    one = SIZE * 5 * 16 * 4
    assert (first.input_bytes, first.saved_input_bytes) == (one, 0), "it is the batch"
    assert (second.input_bytes, second.saved_input_bytes, second.kept_input_bytes) == (one, one, 0)
    assert (tanh.activation_bytes, tanh.saved_input_bytes, tanh.output_bytes) == (one, 0, one)


def test_a_linear_layer_saves_its_input_only_and_keeps_it_with_the_output_gradient():
    linear = lambda: nn.Linear(4, 4, bias=False)  # noqa: E731
    middle = estimate(model_of(linear, linear, nn.Tanh), H100, [8]).at(8)[1]
    one = 8 * 4 * 2
    assert (middle.activation_bytes, middle.saved_input_bytes) == (0, one)
    assert (middle.kept_bytes, middle.kept_input_bytes) == (one, one)


@pytest.mark.parametrize(
    ("dtype", "validate", "state"),
    [
        (torch.float32, "sync", 8),
        (torch.float32, "post", 8 + 4),
        (torch.bfloat16, "sync", 8 + 4),
        (torch.bfloat16, "post", 8 + 4 + 2),
    ],
)
def test_weights_have_their_bytes(dtype, validate, state):
    layers = estimate(REFERENCE, H100, [1], dtype=dtype, validate=validate).at(1)
    rotary = 2 * CONFIG.sequence * (CONFIG.dim // CONFIG.heads // 2)
    for layer, count, buffers in zip(
        layers, parameter_counts(REFERENCE), [0, *[rotary] * 3, 0], strict=True
    ):
        assert layer.gradient_bytes == count * dtype.itemsize
        assert layer.parameter_bytes == (count + buffers) * dtype.itemsize
        assert layer.optimizer_bytes == count * state


def test_times_are_those_of_the_roofline():
    """A product limited by FLOPs, an activation by bytes, and the optimizer by bytes."""
    width, rows = 4096, 8192
    layers = [lambda: nn.Linear(width, width, bias=False), nn.Tanh]
    sample = lambda n: (torch.ones(n, width), torch.ones(n, width))  # noqa: E731
    model = model_of(*layers, *layers[::-1], sample=sample)
    linear, tanh, *_ = estimate(model, A100, [rows]).at(rows)
    kernel = A100.kernel_us / 1e3
    product = 2 * rows * width * width / (312e12 * 0.6) * 1e3 + kernel
    assert linear.forward_ms == pytest.approx(product)
    assert linear.backward_input_ms == 0, "the batch needs no gradient"
    added = 3 * 2 * width * width / (2.039e12 * 0.8) * 1e3 + kernel
    assert linear.backward_weight_ms == pytest.approx(product + added)
    assert tanh.forward_ms == pytest.approx(2 * 2 * rows * width / (2.039e12 * 0.8) * 1e3 + kernel)
    assert linear.optimizer_ms > linear.plain_optimizer_ms > 0
    assert tanh.optimizer_ms == tanh.plain_optimizer_ms == 0


def test_equal_layers_are_built_once_where_that_can_be_known():
    model, built = counting(REFERENCE)
    profile = estimate(model, H100, [1, 2])
    assert built == [0, 1, 4]
    assert profile.at(1)[1] is profile.at(1)[2] is profile.at(1)[3]


def test_layers_of_unknown_kind_are_compared_by_structure():
    layers = [(lambda p=p: nn.Sequential(nn.Linear(4, 4), nn.Dropout(p))) for p in (0.1, 0.1, 0.2)]
    model, built = counting(model_of(lambda: nn.Linear(4, 4), *layers, nn.Tanh))
    table = estimate(model, H100, [1]).at(1)
    assert built == [0, 1, 2, 3, 4]
    assert table[1] is table[2]
    assert table[1] is not table[3]


def test_modules_that_exist_are_left_as_they_are():
    given = nn.Linear(4, 4)
    weight = given.weight.clone()
    layer = estimate(model_of(given, nn.Linear(4, 4)), H100, [1]).at(1)[0]
    assert layer.parameter_bytes == 2 * 20
    assert torch.equal(given.weight, weight)
    assert given.weight.grad is None


def test_values_of_several_tensors_travel():
    pair, joined = estimate(model_of(Pair, Joined), H100, [8]).at(8)
    assert pair.output_bytes == joined.input_bytes == 8 * 4 * (2 + 1)


def test_frozen_layers_have_neither_gradients_nor_state():
    frozen = nn.Linear(4, 4).requires_grad_(False)
    layer = estimate(model_of(nn.Linear(4, 4), frozen, nn.Linear(4, 4)), H100, [2]).at(2)[1]
    assert (layer.gradient_bytes, layer.optimizer_bytes, layer.optimizer_ms) == (0, 0, 0)
    assert layer.backward_weight_ms == 0
    assert layer.backward_input_ms > 0


def test_larger_microbatches_take_more_but_have_the_same_weights():
    profile = estimate(REFERENCE, H100, [2, 4, 2])
    assert list(profile.layers) == [2, 4]
    small, large = profile.at(2)[1], profile.at(4)[1]
    assert large.forward_ms > small.forward_ms
    assert large.output_bytes == 2 * small.output_bytes
    assert large.weight_bytes == small.weight_bytes
    assert profile.link.transfer_ms(360e6) == pytest.approx(0.01 + 1)
    assert profile.memory_bytes == 80e9


@pytest.mark.parametrize(
    ("model", "sizes", "options", "message"),
    [
        (REFERENCE, [], {}, r"microbatch sizes \[\]: give a list of whole numbers of at least 1"),
        (REFERENCE, [0], {}, r"microbatch sizes \[0\]: give a list of whole numbers of at least 1"),
        (REFERENCE, [1], {"optimizer": "sgd"}, "optimizer 'sgd' cannot be profiled: use 'adamw'"),
        (REFERENCE, [1], {"validate": "no"}, "validate must be 'post' or 'sync', not 'no'"),
        (model_of(nn.Tanh, NeedingValues), [1], {}, r"model mine, layer 1 \(layer 1\) cannot be"),
        (model_of(Returning, nn.Tanh), [1], {}, r"layer 0 \(layer 0\): the output .* holds a set"),
        (model_of(lambda: 3, nn.Tanh), [1], {}, r"layer 0 \(layer 0\): layer 0 must be a module"),
        (
            model_of(nn.Tanh, sample=lambda n: (torch.ones(3, 4), None)),
            [2],
            {},
            r"model mine: sample_batch\(2\) gives 3 samples",
        ),
    ],
)
def test_what_cannot_be_estimated_is_told(model, sizes, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        estimate(model, H100, sizes, **options)
    assert "\n" not in str(caught.value)
