"""Does a step mean the same as without a pipeline, whatever is given to it?

Batches that do not divide, keywords of the layers, structured targets, sums of losses, dropout.
"""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.dist import models
from tests.dist.cases import placed
from tests.dist.harness import attempt, launch, values
from tests.strategies import random_schedule
from zerobubble import Pipeline, Whole, build
from zerobubble.ir import Placement
from zerobubble.runtime.randomness import Randomness

WIDTH, M = models.WIDTH, 4
SIZES = (7, 8, 5, 6, 8)
SCHEDULES = {
    "1f1b-p3": build("1f1b", 3, M),
    "zb-h1-p3": build("zb-h1", 3, M),
    "v-p2": placed(2, "v", M),
}


class Positions(nn.Module):
    """Names two keywords; changes one in place, so that a second run on it would show."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(models.VOCABULARY, WIDTH)
        self.place = nn.Embedding(models.LENGTH, WIDTH)

    def forward(self, x, position_ids, scale=1.0):
        places = self.place(position_ids.clone())
        position_ids.zero_()
        return (self.embed(x) + places) * scale


class Masked(nn.Module):
    """Takes everything."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **keywords):
        masks = keywords["masks"]
        return x + self.linear(x) * masks["own"].unsqueeze(-1) + masks["all"]


MASKED = [Positions, nn.Tanh, Masked, models.MLP, Masked, models.Head]


def keywords_of(x, seed=3):
    n, length = x.shape
    generator = torch.Generator().manual_seed(seed)
    return {
        "position_ids": torch.rand(n, length, generator=generator).argsort(-1),
        "scale": 0.5,
        "masks": {
            "own": torch.rand(n, length, generator=generator),
            "all": Whole(torch.ones(5, 1)),
        },
    }


def structured_loss(logits, target):
    labels, (weights, power) = target["labels"], target["weights"]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses.mean(-1) * weights**power).mean()


def mean_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def sum_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


def structured(n, seed=0):
    x, y = models.tokens(n, seed)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    return x, {"labels": y, "weights": (weights, 2)}


def uneven_steps(pipe):
    """Step on batches of every size; count the layouts that are sent on the way."""
    layouts_sent = [0]
    send = pipe.transport.send_object
    pipe.transport.send_object = lambda *args: (
        layouts_sent.append(layouts_sent[-1] + 1),
        send(*args),
    )
    evaluated = float(pipe.eval(*models.tokens(5)))
    found = []
    for seed, n in enumerate(SIZES):
        before = layouts_sent[-1]
        loss = float(pipe.step(*models.tokens(n, seed)))
        found.append((loss, len(pipe.microbatch_losses), layouts_sent[-1] - before))
    return evaluated, found, models.gradients(pipe.named_parameters())


def run_piped(rank, schedule):
    """Run all kinds of batches, each through a pipeline of its own."""
    found = {}
    layers = [layer.double() for layer in models.built(models.transformer())]
    found["uneven"] = uneven_steps(Pipeline(layers, schedule, mean_loss))

    pipe = Pipeline(models.built(models.transformer()), schedule, structured_loss)
    losses = [float(pipe.step(*structured(n))) for n in (8, 7)]
    found["targets"] = losses, models.gradients(pipe.named_parameters())

    pipe = Pipeline(models.built(models.transformer()), schedule, sum_loss, loss_reduction="sum")
    losses = [float(pipe.step(*models.tokens(n))) for n in (8, 7)]
    parts = [float(loss) for loss in pipe.microbatch_losses]
    found["sum"] = losses, models.gradients(pipe.named_parameters()), parts

    pipe = Pipeline(models.built(MASKED), schedule, models.loss_fn)
    losses = []
    for n in (8, 7):
        x, y = models.tokens(n)
        losses.append(float(pipe.eval(x, y, **keywords_of(x))))
        losses.append(float(pipe.step(x, y, **keywords_of(x))))
    found["keywords"] = losses, models.gradients(pipe.named_parameters())
    return found


def plain_parts(model, n, loss_fn, batch, reduction="mean", keywords=lambda x: {}):
    """Run the microbatches of one batch without a pipeline, the larger ones first."""
    x, y = batch
    given, total, parts = keywords(x), None, []
    sizes = [len(part) for part in torch.arange(n).tensor_split(M)]
    for i, size in enumerate(sizes):

        def part(t, i=i):
            return t.value if isinstance(t, Whole) else t.tensor_split(M)[i].clone()

        def tree(value, part=part):
            kinds = (torch.Tensor, Whole)
            return torch.utils._pytree.tree_map_only(kinds, part, value)

        value = tree(x)
        for layer in model:
            names = {Positions: ("position_ids", "scale"), Masked: ("masks",)}.get(type(layer), ())
            value = layer(value, **{name: tree(given)[name] for name in names if given})
        loss = loss_fn(value, tree(y))
        parts.append(float(loss))
        weight = {"mean": loss / M if n % M == 0 else loss * (size / n), "sum": loss}[reduction]
        if torch.is_grad_enabled():
            weight.backward()
        total = weight.detach() if total is None else total + weight.detach()
    return float(total), parts


def run_unpiped(rank):
    found = {}
    model = nn.Sequential(*models.built(models.transformer())).double()
    losses = [
        plain_parts(model, n, mean_loss, models.tokens(n, i))[0] for i, n in enumerate(SIZES)
    ]
    found["uneven"] = losses, models.gradients(model.named_parameters())

    whole = nn.Sequential(*models.built(models.transformer())).double()
    losses = []
    for seed, n in enumerate(SIZES):
        x, y = models.tokens(n, seed)
        loss = mean_loss(whole(x), y)
        loss.backward()
        losses.append(float(loss))
    found["whole"] = losses, models.gradients(whole.named_parameters())
    with torch.no_grad():
        x, y = models.tokens(5)
        found["evaluated"] = float(mean_loss(whole(x), y))

    model = nn.Sequential(*models.built(models.transformer()))
    losses = [plain_parts(model, n, structured_loss, structured(n))[0] for n in (8, 7)]
    found["targets"] = losses, models.gradients(model.named_parameters())

    model = nn.Sequential(*models.built(models.transformer()))
    both = [plain_parts(model, n, sum_loss, models.tokens(n), "sum") for n in (8, 7)]
    found["sum"] = (
        [total for total, _ in both],
        models.gradients(model.named_parameters()),
        both[1][1],
    )

    model = nn.Sequential(*models.built(MASKED))
    losses = []
    for n in (8, 7):
        with torch.no_grad():
            losses.append(
                plain_parts(model, n, models.loss_fn, models.tokens(n), keywords=keywords_of)[0]
            )
        losses.append(
            plain_parts(model, n, models.loss_fn, models.tokens(n), keywords=keywords_of)[0]
        )
    found["keywords"] = losses, models.gradients(model.named_parameters())
    return found


@pytest.fixture(scope="module")
def plain():
    return values(launch(run_unpiped, 1))[0]


@pytest.fixture(scope="module")
def piped():
    return {key: values(launch(run_piped, s.num_ranks, s)) for key, s in SCHEDULES.items()}


@pytest.mark.parametrize("key", SCHEDULES)
def test_an_uneven_batch_has_the_mean_over_its_samples(key, piped, plain):
    of_ranks = [of_rank["uneven"] for of_rank in piped[key]]
    whole_losses, whole = plain["whole"]
    expected_losses, expected = plain["uneven"]
    for evaluated, steps, _ in of_ranks:
        assert evaluated == pytest.approx(plain["evaluated"], rel=1e-6)
        assert [loss for loss, _, _ in steps] == pytest.approx(expected_losses, rel=1e-6)  # float32
    assert expected_losses == pytest.approx(whole_losses, rel=1e-14)
    gradients = models.merged([grads for *_, grads in of_ranks])
    models.assert_same_bits(gradients, expected)
    for name, gradient in whole.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("key", SCHEDULES)
def test_layouts_travel_only_when_a_microbatch_has_a_new_size(key, piped):
    """Sizes 2 2 2 1, 2 2 2 2, 2 1 1 1, 2 2 1 1: all are known after the first batch."""
    for of_rank in piped[key]:
        _, steps, _ = of_rank["uneven"]
        assert [sent for _, _, sent in steps][1:] == [0, 0, 0, 0]
    assert any(of_rank["uneven"][1][0][2] > 0 for of_rank in piped[key])


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize("kind", ["targets", "sum", "keywords"])
def test_losses_and_gradients_are_those_of_the_plain_model(kind, key, piped, plain):
    of_ranks = [of_rank[kind] for of_rank in piped[key]]
    assert [part[0] for part in of_ranks] == [plain[kind][0]] * len(of_ranks)
    models.assert_same_bits(models.merged([part[1] for part in of_ranks]), plain[kind][1])


@pytest.mark.parametrize("key", SCHEDULES)
def test_the_last_stage_knows_the_loss_of_every_microbatch(key, piped, plain):
    holder = SCHEDULES[key].placement.stage_to_rank[-1]
    for rank, of_rank in enumerate(piped[key]):
        assert of_rank["sum"][2] == (plain["sum"][2] if rank == holder else [])
        assert [count for _, count, _ in of_rank["uneven"][1]] == [M * (rank == holder)] * len(
            SIZES
        )


def refuse(rank):
    pipe = Pipeline([Positions(), models.Head()], build("1f1b", 2, 2), models.loss_fn)
    x, y = models.tokens(4)
    return attempt(pipe.step, x, y, position_ids=x, positions=x)


def test_a_misspelt_keyword_is_named_on_all_ranks_with_those_there_are():
    expected = (
        "UsageError",
        "no layer of the model takes keyword 'positions'; they take ['position_ids', 'scale']",
    )
    assert values(launch(refuse, 2)) == [expected] * 2


def clip_and_replay(rank, validate):
    """Let the third step clip, so that forwards with keywords that change run again."""
    schedule = build("zb-h2", 3, M)
    pipe = Pipeline(models.built(MASKED), schedule, models.loss_fn)
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, max_grad_norm=100.0, validate=validate)
    losses = []
    for step in range(5):
        x, y = models.tokens(8, step)
        losses.append(float(pipe.step(x, y, **keywords_of(x, step))))
        if step == 2 and rank == 2:
            next(p for _, p in pipe.named_parameters()).grad.view(-1)[0] = 1e5
        opt.step()
    opt.synchronize()
    return losses, models.parameters(pipe.named_parameters()), opt.num_replayed


def test_keywords_survive_the_replay_of_a_step():
    waited, guessed = (values(launch(clip_and_replay, 3, how)) for how in ("sync", "post"))
    assert [part[2] for part in guessed] == [1, 1, 1]
    for (losses, parameters, _), (expected_losses, expected, _) in zip(
        guessed, waited, strict=True
    ):
        assert losses == expected_losses
        models.assert_same_bits(parameters, expected)


class Dropping(nn.Module):
    """Drops within a block."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.block(x)

    def block(self, x):
        return nn.functional.dropout(torch.tanh(self.linear(x)), 0.5, self.training)


class Recomputed(Dropping):
    """Runs its block once more in the backward."""

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class Reentrant(Dropping):
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=True)


FOUR_STAGES = {
    1: [random_schedule(random.Random(0), Placement((0, 0, 0, 0)), M)],
    2: [placed(2, "v", M), build("interleaved", 2, M), build("zb-v", 2, M)],
    4: [build("1f1b", 4, M), build("zb-h1", 4, M), build("gpipe", 4, M)],
}


def dropping(kind):
    return models.built([models.embedding, *[kind] * 6, models.Head])


def drop(rank, schedules):
    """Take two steps on the same batch; draw random numbers of the user's between them."""
    found = []
    for schedule in schedules:
        for kind in (Dropping, Recomputed, Reentrant):
            pipe = Pipeline(dropping(kind), schedule, models.loss_fn, seed=5)
            torch.manual_seed(1)
            losses, drawn = [], []
            for _ in range(2):
                losses.append(float(pipe.step(*models.tokens(7))))
                drawn.append(float(torch.rand(())))
            found.append((losses, drawn, models.gradients(pipe.named_parameters())))
    return found


def drop_unpiped(rank):
    model = nn.Sequential(*dropping(Dropping))
    torch.manual_seed(1)
    drawn = [float(torch.rand(())) for _ in range(2)]
    x, y = models.tokens(7)
    randomness, losses = Randomness(5, torch.device("cpu")), []
    for step in (1, 2):
        total = None
        with randomness.of_step(step):
            for i, value in enumerate(x.tensor_split(M)):
                size = len(value)
                for stage in range(4):
                    randomness.seed_forward(stage, i)
                    value = model[2 * stage + 1](model[2 * stage](value))
                part = models.loss_fn(value, y.tensor_split(M)[i]) * (size / 7)
                part.backward()
                total = part.detach() if total is None else total + part.detach()
        losses.append(float(total))
    return losses, drawn, models.gradients(model.named_parameters())


def test_dropout_depends_on_step_stage_and_microbatch_only():
    losses, drawn, gradients = values(launch(drop_unpiped, 1))[0]
    assert losses[0] != losses[1]
    for num_ranks, schedules in FOUR_STAGES.items():
        of_ranks = values(launch(drop, num_ranks, schedules))
        for of_case in zip(*of_ranks, strict=True):
            assert [part[0] for part in of_case] == [losses] * num_ranks
            assert [part[1] for part in of_case] == [drawn] * num_ranks
            models.assert_same_bits(models.merged([part[2] for part in of_case]), gradients)
