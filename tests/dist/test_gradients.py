"""Are losses and gradients those of the unpipelined model, bit for bit?"""

import pytest
from torch import nn

from tests.dist import models
from tests.dist.cases import NAMES, PLACEMENTS, defined, num_layers, placed
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build
from zerobubble.errors import ScheduleError


MICROBATCHES = (1, 2, 3, 5, 8)
KEYS = [(p, name, m) for p in (1, 2, 3, 4) for name in NAMES for m in MICROBATCHES]
PLACED = [(p, name, m) for p in PLACEMENTS for name in PLACEMENTS[p] for m in (1, 3, 8)]
# Its first step waited forever when sends were released before their receives could be posted.
PLACED.append((2, "v", 16))
UNDEFINED = [key for key in KEYS if defined(key[1], key[0], key[2]) is None]


def run_pipelines(rank, schedules):
    """Take one step of every schedule; only the first and last stage's ranks get data."""
    return {key: run_pipeline(schedule) for key, schedule in schedules.items()}


def run_pipeline(schedule):
    m = schedule.num_microbatches
    layers = models.built(models.transformer(num_layers(schedule)))
    pipe = Pipeline(layers, schedule, models.loss_fn)
    x, y = models.tokens(2 * m)
    is_first, is_last = 0 in pipe.stages, schedule.num_stages - 1 in pipe.stages
    loss = pipe.step(x if is_first else None, y if is_last else None)
    assert not loss.requires_grad
    return float(loss), models.gradients(pipe.named_parameters())


def run_plain(rank, shapes):
    """Do the same without a pipeline, for every number of layers and microbatches."""
    found = {}
    for depth, m in shapes:
        model = nn.Sequential(*models.built(models.transformer(depth)))
        loss = models.plain_step(model, *models.tokens(2 * m), m)
        found[depth, m] = float(loss), models.gradients(model.named_parameters())
    return found


@pytest.fixture(scope="module")
def plain():
    depths = {num_layers(s) for s in map(_schedule, [*KEYS, *PLACED]) if s}
    return values(launch(run_plain, 1, [(d, m) for d in depths for m in (*MICROBATCHES, 16)]))[0]


@pytest.fixture(scope="module")
def pipelined():
    """Launch the processes for one number of ranks when they are first asked for."""
    found = {}

    def of(num_ranks):
        if num_ranks not in found:
            keys = [k for k in [*KEYS, *PLACED] if k[0] == num_ranks and k not in UNDEFINED]
            schedules = {key: _schedule(key) for key in keys}
            found[num_ranks] = values(launch(run_pipelines, num_ranks, schedules))
        return found[num_ranks]

    return of


def _schedule(key):
    p, name, m = key
    return placed(p, name, m) if name in PLACEMENTS[p] else defined(name, p, m)


@pytest.mark.parametrize("key", [*KEYS, *PLACED], ids=lambda key: "p{}-{}-m{}".format(*key))
def test_one_step_equals_the_unpipelined_model(key, pipelined, plain):
    if key in UNDEFINED:
        assert key[1].startswith("interleaved")
        assert key[2] % key[0]
        with pytest.raises(ScheduleError, match=f"multiple of {key[0]} microbatches"):
            build(key[1], key[0], key[2])
        return
    expected_loss, expected = plain[num_layers(_schedule(key)), key[2]]
    of_ranks = [of_rank[key] for of_rank in pipelined(key[0])]
    assert {loss for loss, _ in of_ranks} == {expected_loss}
    models.assert_same_bits(models.merged([grads for _, grads in of_ranks]), expected)


def test_all_registered_schedules_are_defined_somewhere_with_every_number_of_ranks():
    run = {key[:2] for key in KEYS if key not in UNDEFINED}
    assert run == {(p, name) for p in (1, 2, 3, 4) for name in NAMES}
