"""The small models that real processes train, and the same models without a pipeline."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, LENGTH = 11, 8, 5


class Attention(nn.Module):
    """Causal attention with its projections as plain parameters and ``@``."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH) / WIDTH**0.5)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (self.norm(x) @ self.qkv).split(WIDTH, dim=-1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return x + self.out(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def embedding():
    return nn.Embedding(VOCABULARY, WIDTH)


def transformer(num_layers=7):
    """List the builders of an embedding, alternating blocks and a head."""
    blocks = [(Attention, MLP)[i % 2] for i in range(num_layers - 2)]
    return [embedding, *blocks, Head]


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def tokens(batch_size, seed=0, length=LENGTH):
    """Make a batch of inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCABULARY, (batch_size, length + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def built(builders, seed=0):
    """Build layers by a random seed, to be used as they are."""
    torch.manual_seed(seed)
    return [build() for build in builders]


def plain_step(model, x, y, num_microbatches, loss=loss_fn, scale=1.0):
    """Run forward and backward over the microbatches in order, without a pipeline."""
    total = None
    for x_i, y_i in zip(x.chunk(num_microbatches), y.chunk(num_microbatches), strict=True):
        part = loss(model(x_i), y_i) * scale / num_microbatches
        part.backward()
        total = part.detach() if total is None else total + part.detach()
    return total


def gradients(named_parameters):
    """Copy the gradients by name, as arrays that travel between processes."""
    return {
        name: None if p.grad is None else p.grad.numpy().copy() for name, p in named_parameters
    }


def parameters(named_parameters):
    """Copy the parameters by name."""
    return {name: p.detach().numpy().copy() for name, p in named_parameters}


def merged(of_ranks):
    """Merge the dictionaries of all ranks; no name may be on two of them."""
    merged = {name: value for part in of_ranks for name, value in part.items()}
    assert len(merged) == sum(map(len, of_ranks))
    return merged


def assert_same_bits(actual, expected):
    """Assert that two dictionaries of arrays have the same names and the very same bits."""
    assert sorted(actual) == sorted(expected)
    different = [
        name
        for name, value in expected.items()
        if (value is None) != (actual[name] is None)
        or (value is not None and value.tobytes() != actual[name].tobytes())
    ]
    assert not different, {name: (actual[name], expected[name]) for name in different[:2]}
