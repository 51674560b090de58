"""Which models does the cost of a split backward get measured on?

All are 512 wide and take 4 sequences of 128 positions, the convolutional net 8 images.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zerobubble.train.config import ModelConfig
from zerobubble.train.model import Block

CONFIG = ModelConfig(layers=12, dim=512, heads=8, sequence=128)
NUM_SEQUENCES = 4
NUM_BLOCKS = 4


class Model(NamedTuple):
    """A module and how an input of it is drawn."""

    module: nn.Module
    draw: Callable[[], Tensor]


class Stack(nn.Module):
    """Blocks in a row, each recomputed in the backward if asked for; counts how often each runs."""

    def __init__(self, *blocks: nn.Module, recomputes: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.recomputes = recomputes
        self.num_runs = [0] * len(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks."""
        for i in range(len(self.blocks)):
            x = (
                checkpoint(self._run, i, x, use_reentrant=False)
                if self.recomputes
                else self._run(i, x)
            )
        return x

    def _run(self, i: int, x: Tensor) -> Tensor:
        self.num_runs[i] += 1
        return self.blocks[i](x)


class LlamaBlock(nn.Module):
    """A block of Llama 3: grouped queries, seven linears of their own."""

    def __init__(self, dim: int = 512, ffn_dim: int = 1408, num_heads: int = 8) -> None:
        super().__init__()
        self.head_dim = dim // num_heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(dim, dim // 4, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(dim, ffn_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        h = self.norm1(x)
        q, k, v = (
            linear(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Experts(nn.Module):
    """A feed-forward layer of eight experts, two for each position."""

    def __init__(self, dim: int = 512, ffn_dim: int = 512, num_experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(dim, ffn_dim, bias=False) for _ in range(num_experts))
        self.down = nn.ModuleList(nn.Linear(ffn_dim, dim, bias=False) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2, -1)
        y = torch.zeros_like(rows)
        for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            position, slot = (chosen == expert).nonzero(as_tuple=True)
            out = down(F.silu(up(rows[position])))
            y = y.index_add(0, position, out * weights[position, slot, None])
        return x + y.view_as(x)


def _convolutions() -> nn.Module:
    def layer(num_in: int, num_out: int, stride: int = 1) -> nn.Module:
        convolution = nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(num_out), nn.ReLU())

    sizes = [(3, 32), (32, 64, 2), (64, 64), (64, 128, 2), (128, 128)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*(layer(*size) for size in sizes), *head)


def _hidden() -> Tensor:
    return torch.randn(NUM_SEQUENCES, CONFIG.sequence, CONFIG.dim)


def build(name: str) -> Model:
    """Build ``gpt``, ``llama``, ``moe`` or ``conv``; of the first two also ``... checkpointed``."""
    kind, *options = name.split()
    if kind == "conv":
        return Model(_convolutions(), lambda: torch.randn(8, 3, 32, 32))
    block = {"gpt": lambda: Block(CONFIG), "llama": LlamaBlock, "moe": Experts}[kind]
    blocks = [block() for _ in range(NUM_BLOCKS)]
    return Model(Stack(*blocks, recomputes=bool(options)), _hidden)
