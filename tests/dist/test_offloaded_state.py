"""Does a pipeline whose optimizer keeps its state in host memory learn the same bits?"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.dist import models
from tests.dist.harness import attempt, launch, values
from tests.dist.post_validation import INF, TO_CLIP, Case, adamw, halves, train
from zerobubble import Pipeline, build
from zerobubble.runtime import attempt as attempt_module

SPOILS = {2: (1, TO_CLIP), 5: (0, INF)}
OPTIMIZERS = {
    "adamw": {},
    "sgd": {"optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9},
    "masters": {"master_weights": True},
}


def learn(rank, cases):
    """Train in both ways of validation, with buckets of one parameter."""
    attempt_module.BUCKET_BYTES = 1
    return {
        (key, validate): train(rank, case, validate)
        for key, case in cases.items()
        for validate in ("post", "sync")
    }


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_everything_learned_has_the_bits_of_a_run_without(num_ranks):
    schedule = build("zb-h2", num_ranks, 3)
    cases = {}
    for key, options in OPTIMIZERS.items():
        spoils = SPOILS if num_ranks > 1 else {2: (0, TO_CLIP), 5: (0, INF)}
        case = Case(schedule, 8, spoils, partial(adamw, **options))
        case = replace(case, layers=halves) if "master_weights" in options else case
        offloaded = replace(case, optimizer=partial(adamw, **options, offload_state=True))
        cases |= {(key, False): case, (key, True): offloaded}
    for of_rank in values(launch(learn, num_ranks, cases)):
        for key in OPTIMIZERS:
            for validate in ("post", "sync"):
                found, expected = (of_rank[(key, way), validate] for way in (True, False))
                assert found == expected, (key, validate)


def save_and_load(rank):
    """Go on in a pipeline of the other kind, twice, and without a change."""
    schedule = build("zb-h1", 1, 2)
    states, parameters = [], []
    for ways in ((False, False, False), (False, True, False), (True, False, True)):
        state = None
        for part, offloads in enumerate(ways):
            pipe = Pipeline(models.transformer(), schedule, models.loss_fn, seed=3)
            opt = pipe.optimizer(torch.optim.AdamW, lr=0.01, offload_state=offloads)
            if state is not None:
                pipe.load_state_dict(state[0])
                opt.load_state_dict(state[1])
            for step in range(2):
                pipe.step(*models.tokens(4, seed=2 * part + step))
                opt.step()
            state = pipe.state_dict(), opt.state_dict()
        states.append(str(state[1]["inner"]))
        parameters.append(models.parameters(pipe.named_parameters()))
    return states, parameters


def test_states_are_exchanged_with_runs_without():
    ((states, parameters),) = values(launch(save_and_load, 1))
    assert len(set(states)) == 1
    for found in parameters[1:]:
        models.assert_same_bits(found, parameters[0])


def ask_for_radam(rank):
    pipe = Pipeline(models.transformer(), build("zb-h1", 1, 2), models.loss_fn)
    return attempt(pipe.optimizer, torch.optim.RAdam, offload_state=True)


def test_an_optimizer_that_cannot_is_refused():
    (found,) = values(launch(ask_for_radam, 1))
    assert found == (
        "UsageError",
        "offload_state works with AdamW, Adam and SGD, not with RAdam: use one of these, or leave "
        "the state on the device",
    )
