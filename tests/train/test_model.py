import math

import pytest
import torch
from torch import nn

from zerobubble.train.config import ModelConfig
from zerobubble.train.model import (
    Attention,
    FeedForward,
    build_layers,
    loss,
    rotary_angles,
    rotate,
    tied_parameters,
)

SMALL = ModelConfig(layers=2, dim=32, heads=4, sequence=16)


def built(config=SMALL, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[build() for build in build_layers(config)])


def some_bytes(num_sequences=2, length=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num_sequences, length), generator=generator)


def test_one_tensor_flows_from_layer_to_layer():
    x = some_bytes()
    layers = built()
    shapes = [(x := layer(x)).shape for layer in layers]
    assert shapes == [(2, 16, 32), (2, 16, 32), (2, 16, 32), (2, 16, 256)]


def test_builders_draw_from_the_global_generator_when_called():
    builders = build_layers(SMALL)
    torch.manual_seed(5)
    first = builders[2]()
    torch.manual_seed(5)
    same = builders[2]()
    other = builders[2]()
    weights = [block.attention.output.weight for block in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_parameters_have_no_biases_and_the_expected_spread():
    config = ModelConfig(layers=8, dim=128, heads=4)
    parameters = dict(built(config).named_parameters())
    assert not [name for name in parameters if name.endswith("bias")]
    residual = 0.02 / math.sqrt(16)
    for name, std in {
        "0.embedding.weight": 0.02,
        "3.attention.query_key_value.weight": 0.02,
        "3.attention.output.weight": residual,
        "3.feed_forward.gate_and_up.weight": 0.02,
        "3.feed_forward.down.weight": residual,
        "9.head.weight": 0.02,
    }.items():
        assert parameters[name].std().item() == pytest.approx(std, rel=0.05)
        assert parameters[name].mean().item() == pytest.approx(0, abs=std / 20)


def test_a_later_byte_leaves_earlier_logits_as_they_are():
    layers, x = built(), some_bytes()
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = layers(x), layers(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


def test_a_shorter_sequence_gives_the_first_logits_of_a_longer_one():
    layers, x = built(), some_bytes()
    torch.testing.assert_close(layers(x[:, :5]), layers(x)[:, :5])


def test_a_rotated_score_depends_on_the_distance_of_positions_alone():
    angles = rotary_angles(40, head_dim=8).double()
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rotated(x):
        return rotate(x.expand(40, 8), angles.cos(), angles.sin())

    scores = rotated(q) @ rotated(k).T
    for distance in (-7, 0, 1, 30):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=0)
    assert scores[0].unique().numel() == 40
    torch.testing.assert_close(scores[0, 0], (q @ k.T).squeeze())


def test_rotary_angles_are_position_times_falling_frequency():
    expected = torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]])
    torch.testing.assert_close(rotary_angles(3, head_dim=4), expected)


def test_rotation_keeps_the_dtype_of_a_half_precision_head():
    angles = rotary_angles(4, head_dim=8)
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    assert rotate(x, angles.cos(), angles.sin()).dtype == torch.bfloat16


def test_attention_equals_its_definition():
    attention, x = Attention(SMALL), torch.randn(2, 16, 32)
    angles = rotary_angles(16, 8)
    heads = [
        part.reshape(2, 16, 4, 8).transpose(1, 2)
        for part in (x @ attention.query_key_value.weight.T).split(32, dim=-1)
    ]
    q, k = (rotate(part, angles.cos(), angles.sin()) for part in heads[:2])
    future = torch.ones(16, 16, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(8)).masked_fill(future, -math.inf)
    mixed = (scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(2, 16, 32)
    torch.testing.assert_close(attention(x), mixed @ attention.output.weight.T)


def test_feed_forward_is_a_gated_product():
    layer, x = FeedForward(SMALL), torch.randn(2, 16, 32)
    gate, up = layer.gate_and_up.weight.split(SMALL.ffn_dim)
    gated = (x @ gate.T) * torch.sigmoid(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(layer(x), gated @ layer.down.weight.T)


def test_uniform_logits_cost_ln_256_nats_per_byte():
    value = loss(torch.full((2, 3, 256), 7.0), some_bytes(2, 3))
    assert value.item() == pytest.approx(math.log(256))


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_targets():
    logits, targets = torch.randn(2, 3, 256), some_bytes(2, 3)
    picked = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(loss(logits, targets), -picked.mean())


def test_the_loss_of_bf16_logits_is_computed_in_float32():
    logits, targets = torch.randn(2, 3, 256).bfloat16(), some_bytes(2, 3)
    value = loss(logits, targets)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(logits.float(), targets))


@pytest.mark.parametrize("seed", range(3))
def test_training_starts_near_the_uniform_loss(seed):
    value = loss(built(ModelConfig(), seed)(some_bytes(4, 128)), some_bytes(4, 128, seed=2))
    assert value.item() == pytest.approx(math.log(256), abs=0.1)


def test_autocast_keeps_the_residual_stream_in_float32():
    layers, x = built(), some_bytes()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stream = layers[:3](x)
        logits = layers[3](stream)
    assert stream.dtype == torch.float32
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), layers(x), atol=0.02, rtol=0.05)


def test_a_tied_head_names_two_parameters_of_one_shape():
    config = ModelConfig(layers=2, dim=32, heads=4, sequence=16, tied_head=True)
    parameters = dict(built(config).named_parameters())
    ((first, second),) = tied_parameters(config)
    assert (first, second) == ("0.embedding.weight", "3.head.weight")
    assert parameters[first].shape == parameters[second].shape == (256, 32)
    assert parameters[first] is not parameters[second]


def test_an_untied_head_names_none():
    assert tied_parameters(SMALL) == ()


def test_a_few_steps_learn_a_repeated_text():
    layers, x = built(), some_bytes(1)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        value = loss(layers(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] > 5
    assert losses[-1] < 0.5
