"""Which models must have the same gradients in two parts as in one? One table, read by the tests.

Here are models of many kinds; ``op_cases.py`` has one for each op and its options,
``trap_cases.py`` those that use autograd in unusual ways.
"""

import torch
import torch.nn.functional as F
from case import (
    NUM_TOKENS,
    VOCABULARY,
    WIDTH,
    Case,
    half_hidden,
    hidden,
    image,
    matrix,
    single,
    tokens,
)
from op_cases import OP_CASES
from torch import nn
from torch.utils.checkpoint import checkpoint
from trap_cases import TRAP_CASES


class GPTBlock(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.num_runs = 0

    def forward(self, x):
        self.num_runs += 1
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.proj(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 40, bias=False) for _ in range(2))
        self.down = nn.Linear(40, WIDTH, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class FirstStage(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, **options)
        self.position = matrix(NUM_TOKENS, WIDTH)
        self.block = GPTBlock()

    def forward(self, indices):
        return self.block(self.embedding(indices) + self.position)


class TiedHead(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(VOCABULARY, WIDTH, **options), GPTBlock()

    def forward(self, indices):
        return F.linear(self.middle(self.embedding(indices)), self.embedding.weight)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.shared(torch.tanh(self.other(torch.relu(self.shared(x)))))


class Thrice(Twice):
    def forward(self, x):
        return super().forward(x) + self.shared(x.cos())


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.layers[1].weight.requires_grad_(False)
        self.layers[2].bias.requires_grad_(False)
        self.layers[3].requires_grad_(False)

    def forward(self, x):
        return self.layers(x)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList(matrix(WIDTH, WIDTH) for _ in range(5))
        self.transposed = nn.Parameter(matrix(WIDTH, WIDTH).detach().t())
        self.scale = matrix(WIDTH)

    def forward(self, x):
        x = torch.matmul(x @ self.w[0], self.w[1]).matmul(self.transposed) * self.scale
        y = torch.mm(x.flatten(0, 1), self.w[2]).mm(self.w[3])
        return y @ self.w[4].t()


class Addmm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = matrix(WIDTH, 2 * WIDTH), matrix(2 * WIDTH)
        self.v, self.scaled = matrix(2 * WIDTH, WIDTH), matrix(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.addmm(self.b, x.flatten(0, 1), self.w)
        z = torch.zeros(WIDTH).addmm(y.tanh(), self.v)
        return torch.addmm(z, z, self.scaled, beta=0.5)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.w, self.embedding = matrix(WIDTH, WIDTH), nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, x):
        h = self.a(x).add_(1.0).relu_()
        h = self.b(h).mul_(0.5)
        h = (h @ self.w).clamp_(min=-1.0)
        h[..., :4].mul_(2.0)
        return h + self.embedding(torch.arange(NUM_TOKENS)).sigmoid_()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        h = self.a(x)
        return {"h": h, "rest": (self.b(h.tanh() + y), h.detach(), 3)}


class Checkpointed(nn.Module):
    def __init__(self, dropout: float = 0.1, use_reentrant: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(GPTBlock(dropout) for _ in range(2))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


class Autocast(nn.Module):
    def __init__(self, inner: nn.Module, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, *inputs):
        with torch.autocast("cpu", self.dtype):
            return self.inner(*inputs)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(WIDTH, 8, batch_first=True), nn.Linear(8, WIDTH)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class CountedProduct(torch.autograd.Function):
    num_backwards = 0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, dy):
        CountedProduct.num_backwards += 1
        x, w = ctx.saved_tensors
        return dy @ w.t(), x.flatten(0, 1).t() @ dy.flatten(0, 1)


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = matrix(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(CountedProduct.apply(x, self.w).tanh())


class Experts(nn.Module):
    def __init__(self, num_experts: int = 3):
        super().__init__()
        self.router = nn.Linear(WIDTH, num_experts, bias=False)
        self.up = nn.ParameterList(matrix(24, WIDTH) for _ in range(num_experts))
        self.down = nn.ParameterList(matrix(WIDTH, 24) for _ in range(num_experts))

    def forward(self, x):
        x_TD = x.flatten(0, 1)
        weights, chosen = self.router(x_TD).softmax(-1).topk(2, -1)
        y_TD = torch.zeros_like(x_TD)
        for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            out = F.linear(F.silu(F.linear(x_TD[token], up)), down)
            y_TD = y_TD.index_add(0, token, out * weights[token, slot, None])
        return y_TD.view_as(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.out = nn.Conv2d(8, 4, 3, stride=2, groups=2), nn.Linear(3, 5)

    def forward(self, x):
        return self.out(self.b(F.relu_(self.norm(self.a(x)))))


class Layouts(nn.Module):
    """Inputs that are transposed, sliced, four-dimensional, column-major or without gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(NUM_TOKENS, 5), nn.Linear(WIDTH // 2, 3)
        self.c, self.d, self.e = nn.Linear(4, 4), nn.Linear(WIDTH, 3), nn.Linear(2, 7)
        self.w = matrix(2, WIDTH)

    def forward(self, x):
        a = self.a(x.transpose(1, 2)).transpose(1, 2)
        b = self.b(x[..., ::2])
        c = self.c(x.unflatten(-1, (4, 4)).transpose(1, 2)).transpose(1, 2)
        d = self.d(x[0].t().contiguous().t())
        e = self.e(x[:, 0].t()) + self.e(torch.ones(1, 2))
        return a, b, c, d, e, x[:, 0].t() @ self.w


class Transposed(nn.Module):
    """A bias that sums a transposed output gradient: large enough for the order to show."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x.transpose(1, 2)).transpose(1, 2).contiguous()


class SharedGradient(nn.Module):
    """The parameter takes over, through a view, the very tensor that W still needs."""

    def __init__(self):
        super().__init__()
        self.patch, self.position = nn.Linear(WIDTH, WIDTH), matrix(NUM_TOKENS, WIDTH)

    def forward(self, x):
        return self.patch(x) + self.position.unsqueeze(0)


def attention() -> nn.Module:
    class SelfAttention(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x, need_weights=False)[0]

    return SelfAttention(WIDTH, 4, batch_first=True)


def transposed_embedding() -> nn.Module:
    return nn.Embedding.from_pretrained(torch.randn(WIDTH, VOCABULARY).t(), freeze=False)


CASES: dict[str, Case] = {
    "gpt": Case(GPTBlock, hidden, 4),
    "gpt_dropout": Case(lambda: GPTBlock(0.2), hidden, 4),
    "llama": Case(LlamaBlock, hidden, 7),
    "attention": Case(attention, hidden, 2),
    "first_stage": Case(FirstStage, tokens, 5),
    "padding_idx": Case(lambda: FirstStage(padding_idx=-3), tokens, 5),
    "scale_grad_by_freq": Case(lambda: FirstStage(scale_grad_by_freq=True), tokens, 5),
    "sparse_embedding": Case(lambda: nn.Embedding(VOCABULARY, WIDTH, sparse=True), tokens, 0),
    "max_norm": Case(lambda: nn.Embedding(VOCABULARY, WIDTH, max_norm=0.1), tokens, 0),
    "transposed_embedding": Case(transposed_embedding, tokens, 1),
    "tied_head": Case(TiedHead, tokens, 6),
    "twice": Case(Twice, hidden, 3),
    "thrice": Case(Thrice, hidden, 4),
    "frozen": Case(Frozen, hidden, 2),
    "products": Case(Products, hidden, 6),
    "addmm": Case(Addmm, hidden, 2),
    "in_place": Case(InPlace, hidden, 4),
    "nested_outputs": Case(Nested, lambda: hidden() + hidden(), 2),
    "checkpoint": Case(Checkpointed, hidden, 8),
    "reentrant_checkpoint": Case(lambda: Checkpointed(use_reentrant=True), hidden, 8),
    "autocast": Case(lambda: Autocast(GPTBlock()), hidden, 4),
    "autocast_float16": Case(lambda: Autocast(GPTBlock(0.1), torch.float16), hidden, 4),
    "autocast_reentrant": Case(lambda: Autocast(Checkpointed(use_reentrant=True)), hidden, 8),
    "autocast_llama": Case(lambda: Autocast(LlamaBlock()), hidden, 7),
    "autocast_products": Case(lambda: Autocast(Products()), hidden, 6),
    "autocast_addmm": Case(lambda: Autocast(Addmm()), hidden, 2),
    "autocast_twice": Case(lambda: Autocast(Twice()), hidden, 3),
    "autocast_tied": Case(lambda: Autocast(TiedHead()), tokens, 6),
    "autocast_layouts": Case(lambda: Autocast(Layouts()), hidden, 7),
    "autocast_checkpoint": Case(lambda: Autocast(Checkpointed()), hidden, 8),
    "half": Case(lambda: nn.Linear(WIDTH, WIDTH).bfloat16(), half_hidden, 1),
    "recurrent": Case(Recurrent, hidden, 1),
    "own_function": Case(OwnFunction, hidden, 1),
    "experts": Case(Experts, hidden, 7),
    "convolutions": Case(Convolutions, image, 3),
    "layouts": Case(Layouts, hidden, 7),
    "transposed": Case(Transposed, lambda: (torch.randn(7, 64, 33),), 1),
    "shared_gradient": Case(SharedGradient, single, 1),
    **OP_CASES,
    **TRAP_CASES,
}
