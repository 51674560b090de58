"""Does evaluation give the plain loss, and leave training as it was? Do other optimizers work?"""

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build

M = 4


def layers(drops=True):
    return [*models.built(models.transformer(5)), nn.Dropout(0.5 if drops else 0.0)]


def pipeline(num_ranks, name="zb-h1", drops=True):
    return Pipeline(layers(drops), build(name, num_ranks, M), models.loss_fn)


def plain_loss(rank, seeds):
    model = nn.Sequential(*layers()).eval()
    with torch.no_grad():
        return [
            float(
                sum(
                    models.loss_fn(model(x), y) / M
                    for x, y in zip(*(t.chunk(M) for t in models.tokens(8, seed)), strict=True)
                )
            )
            for seed in seeds
        ]


def evaluate_first(rank, num_ranks, seeds):
    pipe = pipeline(num_ranks)
    losses = [pipe.eval(*models.tokens(8, seed)) for seed in seeds]
    assert not any(loss.requires_grad for loss in losses)
    assert all(p.grad is None for _, p in pipe.named_parameters())
    return list(map(float, losses))


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_evaluation_before_the_first_step_is_the_plain_loss_without_dropout(num_ranks):
    expected = values(launch(plain_loss, 1, (0, 1)))[0]
    assert values(launch(evaluate_first, num_ranks, num_ranks, (0, 1))) == [expected] * num_ranks


def train(rank, num_ranks, evaluates, optimizer):
    """Train three steps, evaluating other batches between them, or not; None: nor with dropout."""
    pipe = pipeline(num_ranks, drops=evaluates is not None)
    torch.manual_seed(1)
    opt = OPTIMIZERS[optimizer](pipe)
    losses = []
    for step in range(3):
        if evaluates:
            pipe.eval(*models.tokens(12, seed=9, length=step + 2))
        losses.append(float(pipe.step(*models.tokens(8, step))))
        if evaluates:
            before = models.gradients(pipe.named_parameters())
            pipe.eval(*models.tokens(4, seed=9))
            models.assert_same_bits(models.gradients(pipe.named_parameters()), before)
        opt.step()
    return losses, models.parameters(pipe.named_parameters())


def momentum(pipe):
    return pipe.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)


def instance(pipe):
    """Two groups with their own options, as only a finished optimizer can have."""
    named = dict(pipe.named_parameters())
    matrices = [p for p in named.values() if p.ndim > 1]
    vectors = [p for p in named.values() if p.ndim == 1]
    groups = [{"params": matrices, "lr": 0.1, "weight_decay": 0.1}, {"params": vectors, "lr": 0.2}]
    return pipe.optimizer(torch.optim.AdamW([g for g in groups if g["params"]]))


OPTIMIZERS = {"momentum": momentum, "instance": instance}


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_evaluation_between_steps_changes_nothing(num_ranks):
    quiet, evaluated = (
        values(launch(train, num_ranks, num_ranks, evaluates, "momentum"))
        for evaluates in (False, True)
    )
    for (losses, parameters), (expected_losses, expected) in zip(evaluated, quiet, strict=True):
        assert losses == expected_losses
        models.assert_same_bits(parameters, expected)


def train_plain(rank, optimizer):
    """Do the same without a pipeline; a model answers for a pipe of one rank."""
    model = nn.Sequential(*layers(drops=False))

    class Plain:
        named_parameters = staticmethod(model.named_parameters)

        def optimizer(self, optimizer, **options):
            return optimizer(model.parameters(), **options) if options else optimizer

    opt = OPTIMIZERS[optimizer](Plain())
    losses = []
    for step in range(3):
        losses.append(float(models.plain_step(model, *models.tokens(8, step), M)))
        opt.step()
        opt.zero_grad()
    return losses, models.parameters(model.named_parameters())


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_steps_as_without_a_pipeline(optimizer, num_ranks):
    expected_losses, expected = values(launch(train_plain, 1, optimizer))[0]
    of_ranks = values(launch(train, num_ranks, num_ranks, None, optimizer))
    assert [losses for losses, _ in of_ranks] == [expected_losses] * num_ranks
    models.assert_same_bits(models.merged([part for _, part in of_ranks]), expected)
