"""What does the reference model compute, layer by layer?

A decoder-only transformer over bytes, given as one builder per layer so that a pipeline may cut it
anywhere: the embedding, the blocks, the final norm with the head. What flows from layer to layer
is a single tensor ``x_BTD``.

Shape suffixes: ``B`` batch, ``T`` position in the sequence, ``D`` model dim, ``F`` feed-forward
dim, ``H`` head, ``K`` dim of one head, ``R`` rotated pair of a head (K / 2), ``V`` vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerobubble.runtime.layered import LayeredModel
from zerobubble.train.config import ModelConfig

_INIT_STD = 0.02
_NORM_EPS = 1e-6
_ROTARY_BASE = 10_000.0


def build_layers(config: ModelConfig) -> list[Callable[[], nn.Module]]:
    """Return one builder per layer: the embedding, ``config.layers`` blocks, the head.

    The first layer maps bytes ``[B, T]`` (int64) to ``[B, T, D]``, the last one ``[B, T, D]`` to
    logits ``[B, T, V]``. Weights are drawn from torch's global generator when a builder is
    called, so whoever seeds before each call gets the same weights for any partition.

    >>> layers = [build() for build in build_layers(ModelConfig(layers=2, dim=8, heads=2))]
    >>> x = torch.zeros(1, 4, dtype=torch.int64)
    >>> for layer in layers:
    ...     x = layer(x)
    >>> len(layers), x.shape
    (4, torch.Size([1, 4, 256]))
    """
    blocks = [partial(Block, config)] * config.layers
    return [partial(Embedding, config), *blocks, partial(Head, config)]


def tied_parameters(config: ModelConfig) -> tuple[tuple[str, str], ...]:
    """Return the pairs of parameters that a trainer must keep equal, none with an untied head.

    A parameter is named by the index of its layer and its name there. Both are parameters of
    their own, because they may live on different ranks: gradients are summed over each pair.

    >>> tied_parameters(ModelConfig(layers=2, tied_head=True))
    (('0.embedding.weight', '3.head.weight'),)
    """
    if not config.tied_head:
        return ()
    return (("0.embedding.weight", f"{config.layers + 1}.head.weight"),)


def reference_model(config: ModelConfig) -> LayeredModel:
    """Give the whole model with its loss, the tie of its head, and batches of its shape.

    >>> reference_model(ModelConfig(layers=2)).layer_names
    ('embedding', 'block 0', 'block 1', 'head')
    """
    return LayeredModel(
        name="reference",
        layers=build_layers(config),
        layer_names=("embedding", *(f"block {i}" for i in range(config.layers)), "head"),
        loss_fn=loss,
        sample_batch=partial(_sample_batch, config),
        tied=tied_parameters(config),
        kinds=("embedding", *["block"] * config.layers, "head"),
    )


def _sample_batch(config: ModelConfig, num_samples: int) -> tuple[Tensor, Tensor]:
    """Draw tokens ``[B, T]`` and those that follow them, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_samples, config.sequence + 1)
    text_BT = torch.randint(config.vocabulary, shape, generator=generator)
    return text_BT[:, :-1], text_BT[:, 1:]


def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per byte, a float32 scalar whatever the logits are.

    >>> round(loss(torch.zeros(1, 2, 256), torch.tensor([[7, 8]])).item(), 4)  # ln 256
    5.5452
    """
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


def rotate(x_BHTK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Turn each pair of a head's channels by its position's angle (arXiv 2104.09864, eq. 34).

    Channel r is paired with channel r + K/2; the result keeps the dtype of ``x_BHTK``.
    """
    a_BHTR, b_BHTR = x_BHTK.chunk(2, dim=-1)
    turned = (a_BHTR * cos_TR - b_BHTR * sin_TR, b_BHTR * cos_TR + a_BHTR * sin_TR)
    return torch.cat(turned, dim=-1).type_as(x_BHTK)


def rotary_angles(num_positions: int, head_dim: int) -> Tensor:
    """Return the angles ``[T, R]`` in radians: position times a frequency falling with the pair."""
    frequency_R = _ROTARY_BASE ** (-torch.arange(0, head_dim, 2) / head_dim)
    return torch.outer(torch.arange(num_positions).float(), frequency_R)


class Embedding(nn.Module):
    """First layer: bytes to vectors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=_INIT_STD)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        """Map ``[B, T]`` int64 to ``[B, T, D]``."""
        return cast(Tensor, self.embedding(bytes_BT))


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    cos_TR: Tensor
    sin_TR: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.query_key_value = _linear(config.dim, 3 * config.dim)
        self.output = _linear(config.dim, config.dim, std=_residual_std(config))
        angles_TR = rotary_angles(config.sequence, self.head_dim)
        self.register_buffer("cos_TR", angles_TR.cos(), persistent=False)
        self.register_buffer("sin_TR", angles_TR.sin(), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; T is at most the configured sequence length."""
        num_positions = x_BTD.shape[1]
        cos_TR, sin_TR = self.cos_TR[:num_positions], self.sin_TR[:num_positions]
        q_BHTK, k_BHTK, v_BHTK = (
            part_BTD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part_BTD in self.query_key_value(x_BTD).chunk(3, dim=-1)
        )
        mixed_BHTK = F.scaled_dot_product_attention(
            rotate(q_BHTK, cos_TR, sin_TR), rotate(k_BHTK, cos_TR, sin_TR), v_BHTK, is_causal=True
        )
        return cast(Tensor, self.output(mixed_BHTK.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202, eq. 6): a gated layer up and one down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_and_up = _linear(config.dim, 2 * config.ffn_dim)
        self.down = _linear(config.ffn_dim, config.dim, std=_residual_std(config))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        gate_BTF, up_BTF = self.gate_and_up(x_BTD).chunk(2, dim=-1)
        return cast(Tensor, self.down(F.silu(gate_BTF) * up_BTF))


class Block(nn.Module):
    """Attention and feed-forward, each normed before and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=_NORM_EPS)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=_NORM_EPS)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return cast(Tensor, x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD)))


class Head(nn.Module):
    """Last layer: vectors to logits over the next byte."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.dim, eps=_NORM_EPS)
        self.head = _linear(config.dim, config.vocabulary)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to logits ``[B, T, V]``."""
        return cast(Tensor, self.head(self.norm(x_BTD)))


def _residual_std(config: ModelConfig) -> float:
    """Keep the residual stream's variance independent of depth: two additions per block."""
    return _INIT_STD / math.sqrt(2 * config.layers)


def _linear(num_in: int, num_out: int, std: float = _INIT_STD) -> nn.Linear:
    linear = nn.Linear(num_in, num_out, bias=False)
    nn.init.normal_(linear.weight, std=std)
    return linear
