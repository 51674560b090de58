"""Models that use autograd, parameters or modules in ways that a split backward could get wrong."""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from case import VOCABULARY, WIDTH, Case, hidden, matrix, tokens
from torch import nn
from torch.nn.utils import parametrizations, parametrize


def linear(*shape, **options):
    return nn.Linear(*(shape or (WIDTH, WIDTH)), **options)


class LowRank(nn.Module):
    """LoRA: a frozen weight and a trainable product of two narrow ones beside it."""

    def __init__(self):
        super().__init__()
        self.frozen, self.down = linear().requires_grad_(False), linear(WIDTH, 2, bias=False)
        self.up = linear(2, WIDTH, bias=False)

    def forward(self, x):
        return self.frozen(x.tanh()) + 0.5 * self.up(self.down(x))


class TwoOps(nn.Module):
    """One weight in a linear, a product, a product on its left and an einsum."""

    def __init__(self):
        super().__init__()
        self.w = matrix(WIDTH, WIDTH)

    def forward(self, x):
        h = torch.tanh(F.linear(x, self.w) @ self.w)
        return torch.einsum("btd,do->bto", (self.w @ h.mT).mT.tanh(), self.w)


class Double(nn.Module):
    """A weight that is used by split ops and by one that stays in B."""

    def __init__(self):
        super().__init__()
        self.a = linear()

    def forward(self, x):
        return self.a(x) * self.a(x.tanh()) + self.a.weight.sum() + x @ self.a.weight


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(linear(), nn.Sequential(nn.Tanh(), linear()))

    def forward(self, x):
        return self.inner(self.inner(x).sin())


def _triple(parameter):
    parameter.grad.mul_(3)


class Hooked(nn.Module):
    """Hooks of every kind, each of which changes the result."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(linear(), nn.GELU(), linear(), nn.LayerNorm(WIDTH), linear())
        first, last = self.layers[0], self.layers[4]
        first.weight.register_hook(lambda g: 2 * g)
        for layer in (last, self.layers[3]):
            layer.weight.register_post_accumulate_grad_hook(_triple)
        last.register_forward_pre_hook(lambda module, args: (args[0].sin(),))
        last.register_forward_hook(lambda module, args, y: y.cos())
        last.register_full_backward_pre_hook(lambda module, dy: (dy[0] * 5,))
        last.register_full_backward_hook(lambda module, dx, dy: (dx[0] * 7,))
        self.layers.register_full_backward_hook(lambda module, dx, dy: None)

    def forward(self, x):
        h = self.layers(x)
        if h.requires_grad:
            h.register_hook(lambda dh: dh * 0.5)
        return h * h


class Functional(nn.Module):
    """``torch.func.functional_call`` with parameters that are not the module's own."""

    def __init__(self):
        super().__init__()
        self.parameters_of = nn.ParameterDict(
            {"weight": matrix(WIDTH, WIDTH), "bias": matrix(WIDTH)}
        )
        object.__setattr__(self, "skeleton", linear().to("meta"))

    def forward(self, x):
        own, derived = dict(self.parameters_of), {k: p.cos() for k, p in self.parameters_of.items()}
        call = partial(torch.func.functional_call, self.skeleton)
        return call(own, x) + call(derived, x.tanh())


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).t()


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.normed, self.symmetric = parametrizations.weight_norm(linear()), linear()
        parametrize.register_parametrization(self.symmetric, "weight", Symmetric())
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x):
        h = self.symmetric(self.normed(x))
        return self.attention(h, h, h, need_weights=False)[0]


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([matrix(WIDTH, WIDTH), matrix(3, WIDTH, WIDTH)])

    def forward(self, x):
        for weight in [self.weights[0], *self.weights[1]]:
            x = F.linear(x, weight).tanh()
        return x


class InnerBackward(nn.Module):
    """Runs a backward of its own during forward, into its parameters and an input."""

    def __init__(self):
        super().__init__()
        self.energy, self.out = nn.Sequential(linear(), nn.Tanh(), linear(WIDTH, 1)), linear()

    def forward(self, x):
        z = x.detach().requires_grad_()
        self.energy(z).sum().backward()
        (slope,) = torch.autograd.grad(self.energy(z).exp().sum(), z)
        return self.out(x - z.grad - slope)


class SparseAndDense(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(VOCABULARY, WIDTH, sparse=True), linear()

    def forward(self, indices):
        return self.out(self.embedding(indices))


class EmbeddingAndInput(nn.Module):
    """A tied head over indices and a float input."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(VOCABULARY, WIDTH), linear()

    def forward(self, x, indices):
        h = self.middle(x + self.embedding(indices)).tanh()
        return F.linear(h, self.embedding.weight)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(WIDTH, 8, 2, batch_first=True), linear(8, WIDTH)

    def forward(self, x):
        return self.out(self.gru(x)[0])


class Mixed(nn.Module):
    """A product, an einsum over heads, a batch of products, a transposed weight."""

    def __init__(self):
        super().__init__()
        self.w, self.heads, self.scale = matrix(WIDTH, WIDTH), matrix(4, WIDTH, 8), matrix(WIDTH)
        self.mix, self.out = matrix(4, 8, 8), matrix(WIDTH, 32)

    def forward(self, x):
        h = torch.einsum("btd,hdk->bhtk", (x @ self.w) * self.scale, self.heads)
        h = torch.bmm(h.transpose(0, 1).flatten(1, 2), self.mix).unflatten(1, (len(x), -1))
        return h.permute(1, 2, 0, 3).flatten(2) @ self.out.t()


class Bfloat16(nn.Module):
    def __init__(self):
        super().__init__()
        layers = linear(), nn.GELU(), nn.LayerNorm(WIDTH), linear(bias=False)
        self.layers = nn.Sequential(*layers).bfloat16()

    def forward(self, x):
        return self.layers(x.bfloat16()).float()


class Copied(nn.Module):
    """A deep copy shares nothing with what it was copied from."""

    def __init__(self):
        super().__init__()
        self.a = linear()
        self.b = copy.deepcopy(self.a)

    def forward(self, x):
        return self.a(x) * self.b(x)


class ProductBlock(nn.Module):
    """Linear layers as GPT-2 has them: a transposed weight, applied with addmm to rows."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), matrix(WIDTH, 40), matrix(40, WIDTH)
        self.up_bias, self.down_bias = matrix(40), matrix(WIDTH)

    def forward(self, x):
        rows = self.norm(x).view(-1, WIDTH)
        h = F.gelu(torch.addmm(self.up_bias, rows, self.up))
        return x + torch.addmm(self.down_bias, h, self.down).view(x.shape)


def multilayer() -> nn.Module:
    return nn.Sequential(linear(WIDTH, 4 * WIDTH), nn.GELU(), linear(4 * WIDTH, WIDTH))


TRAP_CASES = {
    "multilayer": Case(multilayer, hidden, 2),
    "low_rank": Case(LowRank, hidden, 2),
    "two_ops": Case(TwoOps, hidden, 4),
    "double": Case(Double, hidden, 3, tolerance=2e-7),
    "called_twice": Case(CalledTwice, hidden, 4),
    "hooked": Case(Hooked, hidden, 2),
    "functional_call": Case(Functional, hidden, 1, tolerance=2e-7),
    "parametrized": Case(Parametrized, hidden, 2),
    "lists": Case(Lists, hidden, 4),
    "inner_backward": Case(InnerBackward, hidden, 3),
    "sparse_and_dense": Case(SparseAndDense, tokens, 1),
    "embedding_and_input": Case(EmbeddingAndInput, lambda: hidden() + tokens(), 3),
    "gru": Case(Gru, hidden, 1),
    "mixed": Case(Mixed, hidden, 4),
    "bfloat16": Case(Bfloat16, hidden, 2),
    "product_block": Case(ProductBlock, hidden, 2),
    "copied": Case(Copied, hidden, 2),
}
