"""What users do besides training one plain model: is the answer that of the unpipelined model?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build


WIDTH = models.WIDTH
M = 4


class Open(nn.Module):
    """Turns tokens into a dict with everything that may cross a boundary."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(models.VOCABULARY, WIDTH)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return {"h": (self.embed(x), None), "ids": x, "mask": mask, "scale": 0.5, "on": True}


class Use(nn.Module):
    """Reads everything, and changes the hidden state only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        h, nothing = value["h"]
        assert nothing is None
        assert value["on"] is True
        assert value["ids"].dtype == torch.int64
        mixed = value["mask"].float() @ self.linear(h) * value["scale"]
        return value | {"h": (h + mixed + value["ids"].unsqueeze(-1), None)}


class Close(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = models.Head()

    def forward(self, value):
        return self.head(value["h"][0])


class InPlace(nn.Module):
    """Starts with an op that overwrites its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(F.relu_(x))


class Skip(nn.Module):
    """Passes a skip value on beside the hidden state; the last one adds it."""

    def __init__(self, last=False):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.last = last

    def forward(self, value):
        h, skip = value if isinstance(value, tuple) else (value, value)
        h = torch.tanh(self.linear(h))
        return h + skip if self.last else (h, skip)


class Turned(nn.Module):
    """Hands on a transposed view, so that its neighbour must undo it."""

    def forward(self, x):
        return x.transpose(0, 1)


class Checkpointed(nn.Module):
    """Recomputes its block in the backward, and counts how often the block runs."""

    def __init__(self):
        super().__init__()
        self.block = models.Attention()
        self.num_runs = 0

    def forward(self, x):
        return checkpoint(self.count, x, use_reentrant=False)

    def count(self, x):
        self.num_runs += 1
        return self.block(x)


class Twice(nn.Module):
    """Hands on one tensor twice, and others that need no gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("weights", torch.linspace(0, 1, WIDTH))

    def forward(self, value):
        h = value[0] * value[3].float() + value[1] * value[2] if isinstance(value, tuple) else value
        h = torch.tanh(self.linear(h))
        return h, h, self.weights, self.weights > 0.5


class OnceAgain(nn.Module):
    def forward(self, value):
        return value[0] + value[1]


class Collect(nn.Module):
    """Keeps the outputs of all layers before, as a U-Net does; every stage reads all of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        outputs = value if isinstance(value, list) else [value]
        return [*outputs, torch.tanh(self.linear(sum(outputs)))]


class Sum(nn.Module):
    def forward(self, value):
        return sum(value)


class Adapter(nn.Module):
    """LoRA: a frozen layer, and a narrow one beside it that is trained."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Cube(torch.autograd.Function):
    """Counts its backwards in the layer that calls it."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return x**3

    @staticmethod
    def backward(ctx, dy):
        ctx.layer.num_runs += 1
        return 3 * ctx.saved_tensors[0] ** 2 * dy, None


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.num_runs = 0

    def forward(self, x):
        return Cube.apply(self.linear(x), self)


def compiled():
    return torch.compile(models.MLP(), backend="aot_eager")


def compiled_in_place():
    layer = models.MLP()
    layer.compile(backend="eager")
    return layer


def frozen(build):
    return lambda: build().requires_grad_(False)


def frozen_linear():
    return nn.Linear(WIDTH, WIDTH).requires_grad_(False)


def frozen_embedding():
    return models.embedding().requires_grad_(False)


def last_skip():
    return Skip(last=True)


MODELS = {
    "structured": [Open, Use, Use, Use, Use, Close],
    "in-place": [models.embedding, InPlace, InPlace, InPlace, models.MLP, models.Head],
    "skip": [models.embedding, Skip, Skip, Skip, last_skip, models.Head],
    "turned": [models.embedding, Turned, models.MLP, Turned, models.MLP, models.Head],
    "frozen-middle": [
        models.embedding, models.MLP, frozen_linear, frozen_linear, models.MLP, models.Head
    ],
    "frozen-first": [
        frozen_embedding, frozen_linear, frozen_linear, models.MLP, models.MLP, models.Head
    ],
    "twice": [models.embedding, Twice, Twice, Twice, OnceAgain, models.Head],
    "collecting": [models.embedding, Collect, Collect, Collect, Sum, models.Head],
    "frozen-adapters": [frozen_embedding, *[Adapter] * 4, frozen(models.Head)],
    "frozen-but-head": [*map(frozen, [models.embedding, *[models.MLP] * 4]), models.Head],
    "own-function": [models.embedding, *[Own] * 4, models.Head],
    "compiled": [models.embedding, compiled, compiled_in_place, models.MLP, models.MLP, models.Head],
    "uneven": [models.embedding, *[models.MLP] * 6, models.Head],
    "checkpointed": [models.embedding, *[Checkpointed] * 4, models.Head],
}  # fmt: skip
SCHEDULES = {
    "1f1b-p3": build("1f1b", 3, M),
    "zb-h1-p3": build("zb-h1", 3, M),
    "interleaved-p2": build("interleaved", 2, M),
    "v-p2": placed(2, "v", M),
    "v-p3": placed(3, "v", M),
}


def run_piped(rank, num_ranks):
    found = {}
    for name, builders in MODELS.items():
        for key, schedule in SCHEDULES.items():
            if schedule.num_ranks == num_ranks:
                found[name, key] = step_twice(models.built(builders), schedule)
    return found


def step_twice(layers, schedule):
    """Step on two shapes of batch, then repeat the first: gradients add up over all three."""
    pipe = Pipeline(layers, schedule, models.loss_fn)
    losses = [float(pipe.step(*batch)) for batch in batches()]
    held = [layers[i] for s in pipe.stages for i in pipe.layers_of_stage[s]]
    num_runs = [layer.num_runs for layer in held if isinstance(layer, Checkpointed | Own)]
    return losses, models.gradients(pipe.named_parameters()), num_runs


def batches():
    return [models.tokens(2 * M), models.tokens(3 * M, 1, length=7), models.tokens(2 * M, 2)]


def run_unpiped(rank):
    found = {}
    for name, builders in MODELS.items():
        model = nn.Sequential(*models.built(builders))
        losses = [float(models.plain_step(model, x, y, M)) for x, y in batches()]
        found[name] = losses, models.gradients(model.named_parameters())
    return found


@pytest.fixture(scope="module")
def plain():
    return values(launch(run_unpiped, 1))[0]


@pytest.fixture(scope="module")
def piped():
    return {p: values(launch(run_piped, p, p)) for p in (2, 3)}


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_on_two_shapes_add_up_to_the_gradients_of_the_plain_model(
    name, key, piped, plain
):
    expected_losses, expected = plain[name]
    of_ranks = [of_rank[name, key] for of_rank in piped[SCHEDULES[key].num_ranks]]
    assert [losses for losses, *_ in of_ranks] == [expected_losses] * len(of_ranks)
    assert any(gradient is None for gradient in expected.values()) == name.startswith("frozen")
    models.assert_same_bits(models.merged([part[1] for part in of_ranks]), expected)


@pytest.mark.parametrize("key", SCHEDULES)
def test_a_checkpointed_block_runs_once_forward_and_once_again_per_microbatch(key, piped):
    of_ranks = [of_rank["checkpointed", key] for of_rank in piped[SCHEDULES[key].num_ranks]]
    num_runs = [count for _, _, counts in of_ranks for count in counts]
    assert num_runs == [3 * 2 * M] * 4


@pytest.mark.parametrize("key", SCHEDULES)
def test_an_own_function_runs_backward_once_per_microbatch(key, piped):
    of_ranks = [of_rank["own-function", key] for of_rank in piped[SCHEDULES[key].num_ranks]]
    assert [count for _, _, counts in of_ranks for count in counts] == [3 * M] * 4
