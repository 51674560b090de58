"""Are parameters that users tie, save, load or step later those of the unpipelined model?"""

import numpy as np
import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import attempt, launch, values
from zerobubble import Pipeline, build

WIDTH, M, NUM_STEPS = models.WIDTH, 4, 5
V = placed(2, "v", M)
SCHEDULES = {
    "zb-h1-p3": build("zb-h1", 3, M),
    "zb-h2-p3": build("zb-h2", 3, M),
    "zb-v-p2": build("zb-v", 2, M),
    "v-p2": V,
    "1f1b-p1": build("1f1b", 1, M),
}
COPIES = ("0.weight", "2.inner.weight", "5.weight")


class Lookup(nn.Module):
    """Uses its embedding's weight as a matrix."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Embedding(models.VOCABULARY, WIDTH)

    def forward(self, x):
        return x + (x @ self.inner.weight.T).softmax(-1) @ self.inner.weight


def head():
    return nn.Linear(WIDTH, models.VOCABULARY, bias=False)


TIED = [models.embedding, models.MLP, Lookup, models.MLP, models.Attention, head]


def share(layers):
    """Let the layers of ``COPIES`` have one Parameter object."""
    layers[2].inner.weight = layers[5].weight = layers[0].weight
    return layers


def train_tied(rank, schedule, validate, is_shared):
    """Clip every other step; whoever shares objects may name them tied as well."""
    layers = models.built(TIED)
    if is_shared:
        layers = share(layers)
    pipe = Pipeline(layers, schedule, models.loss_fn, tied=[COPIES])
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.02, max_grad_norm=MAX_NORM, validate=validate)
    norms = []
    for step in range(NUM_STEPS):
        pipe.step(*models.tokens(2 * M, step))
        opt.step()
        opt.synchronize()
        norms.append(opt.grad_norm)
    return norms, opt.num_clipped, {n: v.numpy().copy() for n, v in pipe.state_dict().items()}


MAX_NORM = 6.5


def train_tied_plain(rank):
    model = nn.Sequential(*share(models.built(TIED)))
    opt = torch.optim.AdamW(model.parameters(), lr=0.02)
    norms = []
    for step in range(NUM_STEPS):
        models.plain_step(model, *models.tokens(2 * M, step), M)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        opt.step()
        opt.zero_grad()
    return norms, sum(norm > MAX_NORM for norm in norms), {n: v.numpy() for n, v in model.state_dict().items()}


@pytest.fixture(scope="module")
def plain_tied():
    return values(launch(train_tied_plain, 1))[0]


@pytest.mark.parametrize("validate", ["sync", "post"])
@pytest.mark.parametrize(
    ("key", "is_shared"), [*((key, False) for key in SCHEDULES), ("1f1b-p1", True)]
)
def test_three_tied_copies_train_as_one_parameter(key, is_shared, validate, plain_tied):
    schedule = SCHEDULES[key]
    of_ranks = values(launch(train_tied, schedule.num_ranks, schedule, validate, is_shared))
    norms, num_clipped, expected = plain_tied
    assert 0 < num_clipped < NUM_STEPS
    state = models.merged([part[2] for part in of_ranks])
    assert state.keys() == expected.keys()
    for found, clipped, _ in of_ranks:
        assert found == pytest.approx(norms, rel=1e-5)
        assert clipped == num_clipped
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    assert len({state[name].tobytes() for name in COPIES}) == 1


def train_shared(rank):
    """Share the embedding with a layer of the last stage, which is on the same rank."""
    layers = models.built([models.embedding, models.MLP, models.MLP, head])
    layers[3].weight = layers[0].weight
    pipe = Pipeline(layers, V, models.loss_fn)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=0.5)
    pipe.step(*models.tokens(2 * M))
    opt.step()
    return opt.grad_norm, models.parameters(pipe.named_parameters())


def train_shared_plain(rank):
    layers = models.built([models.embedding, models.MLP, models.MLP, head])
    layers[3].weight = layers[0].weight
    model = nn.Sequential(*layers)
    models.plain_step(model, *models.tokens(2 * M), M)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return float(norm), models.parameters(model.named_parameters())


def test_two_stages_of_a_rank_may_share_a_parameter_object():
    of_ranks = values(launch(train_shared, 2))
    norm, expected = values(launch(train_shared_plain, 1))[0]
    assert norm > 0.5
    assert [part[0] for part in of_ranks] == pytest.approx([norm] * 2, rel=1e-6)
    parameters = models.merged([part[1] for part in of_ranks])
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


class Normed(nn.Module):
    """Has buffers, one of them an integer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(models.LENGTH)

    def forward(self, x):
        return self.norm(x)


SAVED = [models.embedding, Normed, models.MLP, models.Attention, Normed, models.Head]


def save_and_load(rank, schedule):
    """Train, save after a guess that was wrong, train on, go back to that, train on again."""
    pipe = Pipeline(models.built(SAVED), schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1e3, validate="post")
    pipe.step(*models.tokens(2 * M))
    opt.step()
    before = {name: value.clone() for name, value in pipe.state_dict().items()}
    pipe.step(*models.tokens(2 * M, 1))
    if rank == schedule.num_ranks - 1:
        next(p for _, p in pipe.named_parameters()).grad.view(-1)[0] = float("inf")
    opt.step()
    assert opt.is_pending
    saved = {name: value.clone() for name, value in pipe.state_dict().items()}
    assert all(torch.equal(saved[name], before[name]) for name, _ in pipe.named_parameters())
    losses = []
    for _ in range(2):
        losses.append(float(pipe.step(*models.tokens(2 * M, 2))))
        opt.step()
        losses.append(float(pipe.eval(*models.tokens(2 * M, 3))))
        pipe.load_state_dict(saved)
    everything = {name: value.numpy() for name, value in saved.items()}
    first = next(iter(saved))
    wrong = {
        "missing": {name: value for name, value in saved.items() if name != first},
        "unexpected": saved | {first.replace("weight", "wait"): saved[first]},
        "no-layer": saved | {"9.weight": saved[first]},
        "shape": saved | {first: torch.ones(2)},
    }
    return losses, everything, {key: attempt(pipe.load_state_dict, s) for key, s in wrong.items()}


def evaluate_saved(rank, state):
    """Load the states of all ranks into the unpipelined model, and that into a pipeline."""
    model = nn.Sequential(*models.built(SAVED))
    missing = model.load_state_dict({name: torch.tensor(v) for name, v in state.items()})
    loss = float(models.plain_step(model, *models.tokens(2 * M, 2), M))
    pipe = Pipeline(models.built(SAVED, seed=1), build("1f1b", 1, M), models.loss_fn)
    pipe.load_state_dict({name: torch.tensor(v) for name, v in state.items()})
    return loss, float(pipe.step(*models.tokens(2 * M, 2))), str(missing)


@pytest.mark.parametrize("key", ["zb-h1-p3", "v-p2"])
def test_states_of_all_ranks_are_the_state_of_the_whole_model(key):
    schedule = SCHEDULES[key]
    of_ranks = values(launch(save_and_load, schedule.num_ranks, schedule))
    state = models.merged([part[1] for part in of_ranks])
    plain_loss, piped_loss, keys = values(launch(evaluate_saved, 1, state))[0]
    assert keys == "<All keys matched successfully>"
    for (first, evaluated, again, evaluated_again), *_ in of_ranks:
        assert first == again == plain_loss == piped_loss
        assert evaluated == evaluated_again != first
    names = {name for name in state if name.startswith("0.")}
    assert names == {"0.weight"}
    messages = of_ranks[0][2]
    layers = [0, 1] if schedule.num_ranks == 3 else [0, 1, 5]
    begin = f"this state does not fit layers {layers}: "
    assert messages["missing"] == ("UsageError", f"{begin}['0.weight'] are missing")
    assert messages["unexpected"] == ("UsageError", f"{begin}['0.wait'] are unexpected")
    assert messages["no-layer"] == ("UsageError", f"{begin}['9.weight'] are unexpected")
    assert messages["shape"] == (
        "UsageError", f"{begin}['0.weight [2] for [11, 8]'] have other shapes"
    )  # fmt: skip


def load_with_masters(rank):
    """Load zeros: a step without gradients' help must go on from them, not from old masters."""
    pipe = Pipeline([nn.Linear(2, 2).bfloat16()], build("1f1b", 1, 1), nn.functional.mse_loss)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.0, master_weights=True)
    pipe.load_state_dict({name: torch.zeros_like(v) for name, v in pipe.state_dict().items()})
    batch = torch.ones(1, 2, dtype=torch.bfloat16)
    pipe.step(batch, batch)
    opt.step()
    return [float(p.abs().sum()) for _, p in pipe.named_parameters()]


def test_master_weights_follow_a_state_that_is_loaded():
    assert values(launch(load_with_masters, 1))[0] == [0.0, 0.0]


def accumulate(rank, schedule, sizes, reduction):
    """Add up the gradients of several batches, which together are always the same."""
    layers = [layer.double() for layer in models.built(models.transformer())]
    pipe = Pipeline(layers, schedule, summed if reduction == "sum" else mean, loss_reduction=reduction)
    x, y = models.tokens(sum(sizes))
    for part in zip(x.split(sizes), y.split(sizes), strict=True):
        pipe.step(*part)
    return models.gradients(pipe.named_parameters())


def mean(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def summed(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


@pytest.mark.parametrize(("reduction", "sizes"), [("mean", [8, 8, 8]), ("sum", [8, 7, 9])])
def test_accumulated_gradients_are_those_of_one_larger_step(reduction, sizes):
    schedule = SCHEDULES["zb-h1-p3"]
    several, one = (
        models.merged(values(launch(accumulate, 3, schedule, parts, reduction)))
        for parts in (sizes, [sum(sizes)])
    )
    factor = len(sizes) if reduction == "mean" else 1
    for name, gradient in one.items():
        np.testing.assert_allclose(several[name], factor * gradient, rtol=1e-9, atol=1e-14)
