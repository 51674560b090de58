"""Does a measured profile count what is there, and tell heavy layers from light ones?"""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.profiling.models import (
    QUICK,
    REFERENCE,
    Empty,
    Joined,
    Nothing,
    Pair,
    Returning,
    Sleeping,
    counting,
    model_of,
)
from zerobubble.errors import UsageError
from zerobubble.profile.file import dumps, loads
from zerobubble.profiling import H100, estimate, measure
from zerobubble.profiling.ranks import Ranks
from zerobubble.train.layers import parameter_counts


def measured(model, *sizes, **options):
    return measure(model, num_ranks=1, microbatch_sizes=sizes, **QUICK | options)


def test_a_reference_model_has_all_figures():
    model, built = counting(REFERENCE)
    profile = measured(model, 2, 1)
    assert built == [0, 1, 4], "like layers are built once, for both sizes"
    assert (profile.model, profile.device, profile.memory_bytes) == ("reference", "cpu", None)
    assert list(profile.layers) == [1, 2]
    embedding, *blocks, head = profile.at(2)
    assert blocks[0] is blocks[1] is blocks[2]
    for layer in (embedding, blocks[0], head):
        for name in ("forward", "backward_input", "backward_weight", "optimizer"):
            assert getattr(layer, f"{name}_ms") > 0
        for name in ("plain_forward_ms", "plain_backward_ms", "plain_optimizer_ms"):
            assert getattr(layer, name) > 0
    assert profile.step_overhead_ms > 0
    assert profile.link.transfer_ms(10**9) == 0, "there is no other rank"
    assert loads(dumps(profile), "it") == profile


def test_bytes_are_those_of_an_estimate():
    layers = measured(REFERENCE, 2).at(2)
    expected = estimate(REFERENCE, H100, [2], dtype=torch.float32).at(2)
    for layer, other in zip(layers, expected, strict=True):
        for name in ("parameter_bytes", "gradient_bytes", "output_bytes", "saved_input_bytes"):
            assert getattr(layer, name) == getattr(other, name)
        for name in ("activation_bytes", "kept_bytes"):
            assert getattr(layer, name) == pytest.approx(getattr(other, name), abs=24)


@pytest.mark.parametrize(("validate", "per_parameter"), [("sync", 8), ("post", 12)])
def test_state_has_two_means_and_post_validation_keeps_a_copy(validate, per_parameter):
    profile = measured(REFERENCE, 1, validate=validate)
    for layer, count in zip(profile.at(1), parameter_counts(REFERENCE), strict=True):
        steps = 4 * 6  # AdamW counts the steps of each parameter
        assert 0 <= layer.optimizer_bytes - per_parameter * count <= steps


def test_a_layer_that_sleeps_takes_as_long():
    light, heavy, _ = measured(model_of(*(lambda ms=ms: Sleeping(ms) for ms in (0, 20, 0))), 1).at(
        1
    )
    assert light.forward_ms < 20 <= heavy.forward_ms
    assert heavy.plain_forward_ms >= 20
    assert heavy.backward_input_ms < 20


def test_a_layer_eight_times_as_heavy_takes_longer():
    """On a machine that does other things too, an eighth is far enough from noise."""
    width = 192

    def deep(num):
        return lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(num)))

    model = model_of(
        deep(1), deep(2), deep(16), deep(1), sample=lambda n: (torch.ones(n, width),) * 2
    )
    _, light, heavy, _ = measured(model, 256, seconds=0.3).at(256)
    for name in ("forward_ms", "backward_input_ms", "backward_weight_ms", "plain_backward_ms"):
        assert getattr(heavy, name) > 1.5 * getattr(light, name)
    assert heavy.parameter_bytes == 8 * light.parameter_bytes


def test_the_last_layer_has_the_loss():
    def slow_loss(output, target):
        return Sleeping(20)(output).sum()

    model = model_of(lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4))
    first, last = measured(model.__class__(**vars(model) | {"loss_fn": slow_loss}), 1).at(1)
    assert first.forward_ms < 20 <= last.forward_ms
    assert (first.output_bytes, last.output_bytes) == (16, 0)


def test_values_of_several_tensors_and_layers_without_weights():
    pair, joined = measured(model_of(Pair, Joined), 8).at(8)
    assert pair.output_bytes == joined.input_bytes == 8 * 4 * (4 + 1)
    assert (pair.parameter_bytes, pair.optimizer_ms, pair.backward_input_ms < 20) == (0, 0, True)
    assert joined.backward_weight_ms > 0


def test_mixed_precision_halves_what_travels_from_a_linear_layer():
    model = model_of(*[lambda: nn.Linear(4, 4)] * 2)
    whole, half = (measured(model, 1, autocast=d).at(1)[0] for d in (None, torch.bfloat16))
    assert (whole.output_bytes, half.output_bytes) == (16, 8)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            model_of(Returning, nn.Tanh),
            {},
            r"layer 0 \(layer 0\): the output of stage 0 holds a set",
        ),
        (
            model_of(lambda: nn.Linear(5, 4), nn.Tanh),
            {},
            r"layer 0 \(layer 0\) cannot be profiled: mat1 and mat2 shapes cannot be multiplied",
        ),
        (model_of(nn.Tanh, Nothing, nn.Tanh), {}, r"layer 1 .*its forward returns no tensor"),
        (model_of(Empty, nn.Tanh), {}, r"layer 0 .*its forward returns no tensor"),
        (model_of(nn.Tanh, nn.Tanh, sample=lambda n: None), {}, r"must give input and target"),
        (None, {}, "model is a NoneType: give a LayeredModel"),
        ([nn.Linear(8, 8)], {}, "model is a list: give a LayeredModel"),
        (REFERENCE, {"seconds": float("nan")}, "^seconds must be a number above 0, not nan"),
        (REFERENCE, {"num_ranks": "2"}, "num_ranks must be a whole number"),
        *[
            (REFERENCE, {"microbatch_sizes": sizes}, "give a list of whole numbers of at least 1")
            for sizes in (["1"], 3, [1.5], [True], [], None)
        ],
        (replace(REFERENCE, tied=(("0.no", "4.head.weight"),)), {}, r"'0\.no' does not exist"),
        (replace(REFERENCE, tied=(("9.x", "0.y"),)), {}, r"with a layer from 0 to 4"),
        (REFERENCE, {"device": "tpu"}, "device 'tpu' is unknown"),
        (REFERENCE, {"validate": "no"}, "validate must be 'post' or 'sync', not 'no'"),
    ],
)
def test_what_cannot_be_measured_is_told(model, options, message):
    with pytest.raises(UsageError, match=message):
        measure(model, **{"num_ranks": 1, "microbatch_sizes": [1]} | QUICK | options)


class OneRank:
    """The transport of a run with one rank."""

    device = torch.device("cpu")

    def share_object(self, value):
        return [value]


def test_rounds_of_two_kinds_take_turns_in_both_orders():
    turns = []
    Ranks(OneRank(), 1e-9, 4).repeat(
        [lambda: turns.append("split"), lambda: turns.append("plain")], turns.clear
    )
    one, other = ["split", "plain"], ["plain", "split"]
    assert turns == one + other + one + other


def test_load_that_grows_meets_split_and_plain_forwards_alike():
    """A machine that gets slower from round to round makes no schedule look better."""

    class Growing(nn.Module):
        rounds = 0

        def forward(self, x):
            Growing.rounds += 1
            time.sleep(Growing.rounds * 2e-5)
            return x * 1

    layer = measured(model_of(Growing, nn.Tanh), 1, seconds=0.0001, least_rounds=20).at(1)[0]
    assert layer.forward_ms == pytest.approx(layer.plain_forward_ms, rel=0.2)
