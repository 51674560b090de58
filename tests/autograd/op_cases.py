"""One model for each op that is split, and for its options."""

from functools import partial

import torch
import torch.nn.functional as F
from case import NUM_TOKENS, VOCABULARY, WIDTH, Case, hidden, image, matrix, tokens
from torch import nn


class Apply(nn.Module):
    """A function of an input and of parameters of the given shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.p = nn.ParameterList(matrix(*shape) for shape in shapes)

    def forward(self, *inputs):
        return self.function(*map(_entered, inputs), *self.p).transpose(0, -1).exp()


def late(name, *operands, **options):
    """Look the function up when it is called: one that was imported before is not caught."""
    return getattr(F, name)(*operands, **options)


def _entered(x):
    return x.sin() if x.is_floating_point() else x


def case(function, *shapes, inputs=hidden, num_deferred=1):
    return Case(partial(Apply, function, *shapes), inputs, num_deferred)


def experts():
    return (torch.randn(4, NUM_TOKENS, WIDTH),)


def deep():
    return (torch.randn(2, 3, NUM_TOKENS, WIDTH),)


def plane():
    return (torch.randn(WIDTH, 9),)


def series():
    return (torch.randn(2, 4, 9),)


def volume():
    return (torch.randn(2, 2, 4, 5, 6),)


def channels_last():
    return (image()[0].to(memory_format=torch.channels_last),)


def groups():
    return (torch.randn(20, WIDTH),)


def pair():
    return hidden() + hidden()


def column_major(w):
    return nn.Parameter(w.detach().t().contiguous().t())


class ColumnMajor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (column_major(matrix(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, x):
        return self.a @ (x[0] @ self.b).t()


class Attention(nn.Module):
    """Attention to other tokens than one's own, of other widths if asked."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True, **options)

    def forward(self, x, y):
        return self.attention(x, y, y)[0]


class ThreeInputs(Attention):
    def forward(self, x, y):
        return self.attention(x, y, y.cos(), need_weights=False)[0]


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.layers(x)


class Autocast(nn.Module):
    def __init__(self, function, *shapes):
        super().__init__()
        self.inner = Apply(function, *shapes)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


def autocast_case(function, *shapes, inputs=hidden):
    return Case(partial(Autocast, function, *shapes), inputs, 1)


def grouped(x, w):
    """Rows of three groups, one of them empty."""
    return F.grouped_mm(x, w, offs=torch.tensor([8, 8, 20], dtype=torch.int32))


E, H = (4, WIDTH, 5), (3, WIDTH, 7)

OP_CASES = {
    "matmul_left": case(lambda x, w: w @ x, (7, WIDTH), inputs=plane),
    "matmul_left_of_columns": case(lambda x, w: torch.mm(w, x.t()), (7, 9), inputs=plane),
    "matmul_left_of_batch": case(lambda x, w: w @ x, (7, NUM_TOKENS)),
    "matmul_left_of_deep": case(lambda x, w: w @ x.mT, (7, WIDTH), inputs=deep),
    "column_major": Case(ColumnMajor, hidden, 2),
    "linear_narrow_bias": case(lambda x, w, b: F.linear(x, w, b), (7, WIDTH), (1,)),
    "addmm_narrow_bias": case(lambda x, w, b: torch.addmm(b, x, w), (9, 7), (1,), inputs=plane),
    "addmm_view_of_bias": case(
        lambda x, w, b: torch.addmm(b[1:8], x, w), (9, 7), (9,), inputs=plane
    ),
    "bmm": case(lambda x, w: torch.bmm(x, w), E, inputs=experts),
    "bmm_left": case(lambda x, w: w.bmm(x.mT), (4, 5, WIDTH), inputs=experts),
    "bmm_of_transposed": case(lambda x, w: x.bmm(w.mT), (4, 5, WIDTH), inputs=experts),
    "baddbmm": case(lambda x, w, b: torch.baddbmm(b, x, w), E, (4, 1, 5), inputs=experts),
    "baddbmm_constant": case(
        lambda x, w: torch.ones(4, NUM_TOKENS, 5).baddbmm(x, w), E, inputs=experts
    ),
    "matmul_batch": case(lambda x, w: x @ w, E, inputs=experts),
    "matmul_batch_left": case(lambda x, w: w @ x, (4, 5, NUM_TOKENS), inputs=experts),
    "matmul_deep_batch": case(lambda x, w: x @ w, (2, 3, WIDTH, 5), inputs=deep),
    "matmul_broadcast_batch": case(lambda x, w: x @ w, H, inputs=deep, num_deferred=0),
    "view_of_view": case(
        lambda x, w: sum(x @ part.t() for part in w.split([3, 3])), (6, WIDTH), num_deferred=0
    ),
    "view_slice": case(lambda x, w: F.linear(x, w[2:5]), (7, WIDTH)),
    "view_select": case(lambda x, w: x @ w[1], E),
    "view_columns": case(lambda x, w: F.linear(x, w[:, ::2]), (7, 2 * WIDTH)),
    "view_transposed": case(lambda x, w: x @ w.t(), (7, WIDTH)),
    "view_of_bias": case(lambda x, w, b: F.linear(x, w, b[3:]), (7, WIDTH), (10,)),
    "einsum": case(lambda x, w: torch.einsum("btd,hdk->bhtk", x, w), H),
    "einsum_left": case(lambda x, w: torch.einsum("hdk,btd->bhtk", w, x), H),
    "einsum_of_one": case(
        lambda x, w: torch.einsum("btd,hdk->bhtk", x, w), H, inputs=lambda: (hidden()[0][:1],)
    ),
    "einsum_batch": case(lambda x, w: torch.einsum("etd,edk->tke", x, w), E, inputs=experts),
    "einsum_two_sums": case(lambda x, w: torch.einsum("bhtd,hdo -> bto", x, w), H, inputs=deep),
    "einsum_implicit": case(lambda x, w: torch.einsum("btd,dz", x, w), (WIDTH, 3)),
    "einsum_capitals": case(lambda x, w: torch.einsum("bTD,zaD->zTba", x, w), (3, 2, WIDTH)),
    "einsum_to_rows": case(lambda x, w: torch.einsum("btd,do->otb", x, w), (WIDTH, 3)),
    "einsum_reversed": case(lambda x, w: torch.einsum("dtb,ob->dot", x, w), (3, WIDTH)),
    "einsum_of_view": case(lambda x, w: torch.einsum("btd,do->bto", x, w[1]), E),
    "einsum_broadcast": case(
        lambda x, w: torch.einsum("btd,hdk->bhtk", x, w),
        H,
        inputs=lambda: (hidden()[0][..., :1],),
        num_deferred=0,
    ),
    "conv1d": case(partial(late, "conv1d"), (6, 4, 3), (6,), inputs=series),
    "conv1d_same": case(partial(late, "conv1d", padding="same"), (6, 4, 4), inputs=series),
    "conv1d_valid": case(partial(late, "conv1d", padding="valid"), (6, 4, 3), inputs=series),
    "conv1d_depthwise": case(partial(late, "conv1d", groups=4), (4, 1, 3), inputs=series),
    "conv2d": case(partial(late, "conv2d", stride=2, padding=1), (4, 3, 3, 3), (4,), inputs=image),
    "conv2d_dilated": case(partial(late, "conv2d", dilation=(1, 2)), (4, 3, 3, 3), inputs=image),
    "conv2d_same": case(
        partial(late, "conv2d", padding="same", dilation=(1, 3)), (4, 3, 2, 4), (4,), inputs=image
    ),
    "conv2d_same_uneven": case(
        partial(late, "conv2d", padding="same"), (4, 3, 2, 3), (4,), inputs=image
    ),
    "conv2d_without_channels": case(
        partial(late, "conv2d"), (4, 0, 1, 1), inputs=lambda: (image()[0][:, :0],)
    ),
    "conv2d_pointwise": case(partial(late, "conv2d"), (4, 3, 1, 1), (4,), inputs=image),
    "conv2d_channels_last": Case(ChannelsLast, channels_last, 2),
    "conv3d": case(
        partial(late, "conv3d", padding=(1, 0, 1)), (3, 2, 2, 3, 3), (3,), inputs=volume
    ),
    "conv_unbatched": case(
        lambda x, w: F.conv1d(x[0], w), (6, 4, 3), inputs=series, num_deferred=0
    ),
    "conv_transpose1d": case(
        partial(late, "conv_transpose1d", stride=2), (4, 5, 3), (5,), inputs=series
    ),
    "conv_transpose2d": case(
        partial(late, "conv_transpose2d", stride=2, output_padding=1, groups=3, padding=1),
        (3, 2, 3, 3),
        (6,),
        inputs=image,
    ),
    "conv_transpose3d": case(
        partial(late, "conv_transpose3d", dilation=2), (2, 3, 2, 2, 2), inputs=volume
    ),
    "grouped": case(grouped, (3, WIDTH, 8), inputs=groups),
    "grouped_transposed": case(lambda x, w: grouped(x, w.mT), (3, 8, WIDTH), inputs=groups),
    "grouped_columns": case(
        lambda x, w: grouped(x.t().contiguous().t(), w), (3, WIDTH, 8), inputs=groups
    ),
    "cross_attention": Case(Attention, pair, 3),
    "attention_of_three": Case(ThreeInputs, pair, 4),
    "attention_of_widths": Case(partial(Attention, kdim=WIDTH, vdim=WIDTH), pair, 3),
    "attention_without_bias": Case(partial(Attention, bias=False), pair, 3),
    "embedding_view": case(
        lambda i, w: F.embedding(i, w[2:]),
        (VOCABULARY + 2, 8),
        inputs=tokens,
    ),
    "embedding_negative_padding": case(
        lambda i, w: F.embedding(i, w, -3), (VOCABULARY, 8), inputs=tokens
    ),
    "autocast_matmul_left": autocast_case(lambda x, w: w @ x, (7, NUM_TOKENS)),
    "autocast_bmm": autocast_case(lambda x, w: x.bmm(w), E, inputs=experts),
    "autocast_baddbmm": autocast_case(
        lambda x, w: torch.baddbmm(torch.ones(4, 1, 5), x, w), E, inputs=experts
    ),
    "autocast_einsum": autocast_case(lambda x, w: torch.einsum("btd,hdk->bhtk", x, w), H),
    "autocast_view": autocast_case(lambda x, w: F.linear(x, w[2:5]), (7, WIDTH)),
    "autocast_conv": autocast_case(partial(late, "conv2d"), (4, 3, 3, 3), (4,), inputs=image),
    "autocast_conv_transpose": autocast_case(
        partial(late, "conv_transpose2d"), (3, 4, 2, 2), inputs=image
    ),
}
