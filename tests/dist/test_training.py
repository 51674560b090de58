"""Are losses, norms and final parameters of a training the same bits for any number of ranks?"""

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.cases import NAMES, PLACEMENTS, defined, placed
from tests.dist.harness import launch, values
from zerobubble import Pipeline


NUM_STEPS, NUM_MICROBATCHES, NUM_LAYERS = 5, 12, 9
TIED = ("0.weight", f"{NUM_LAYERS - 1}.out.weight")
MAX_GRAD_NORM = {"float32": 0.38, "tied": 2.5, "bfloat16": 0.38}  # some norms are larger
VARIANTS = {
    "float32": {},
    "tied": {"tied": [TIED]},
    "bfloat16": {"autocast": torch.bfloat16},
}
FEW = {"1f1b", "zb-h1", "interleaved", "v", "three-stages"}
def _schedule(num_ranks, name):
    if name in PLACEMENTS[num_ranks]:
        return placed(num_ranks, name, NUM_MICROBATCHES)
    return defined(name, num_ranks, NUM_MICROBATCHES)


SCHEDULES = [
    (p, name)
    for p in (1, 2, 3, 4)
    for name in (*NAMES, *PLACEMENTS[p])
    if name in FEW or (p > 1 and _schedule(p, name).num_stages <= NUM_LAYERS)
]
CASES = [
    (p, name, variant)
    for p, name in SCHEDULES
    for variant in VARIANTS
    if variant == "float32" or name in FEW
]


def train_all(rank, schedules):
    """Train under every schedule, with layers given as callables."""
    return {key: train(schedule, key[2]) for key, schedule in schedules.items()}


def train(schedule, variant):
    layers = models.transformer(NUM_LAYERS)
    pipe = Pipeline(layers, schedule, models.loss_fn, seed=7, **VARIANTS[variant])
    opt = pipe.optimizer(torch.optim.AdamW, lr=0.02, max_grad_norm=MAX_GRAD_NORM[variant])
    initial = models.parameters(pipe.named_parameters())
    history = []
    for step in range(NUM_STEPS):
        loss = pipe.step(*models.tokens(2 * NUM_MICROBATCHES, seed=step))
        opt.step()
        history.append((float(loss), opt.grad_norm, opt.num_clipped))
    return history, initial, models.parameters(pipe.named_parameters())


def train_plain(rank, initial, variant):
    """Train the same without a pipeline, as any script would."""
    model = nn.Sequential(*models.built(models.transformer(NUM_LAYERS)))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()})
    if variant == "tied":
        model[-1].out.weight = model[0].weight
    opt = torch.optim.AdamW(model.parameters(), lr=0.02)
    history = []
    for step in range(NUM_STEPS):
        batch = models.tokens(2 * NUM_MICROBATCHES, seed=step)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "bfloat16"):
            loss = models.plain_step(model, *batch, NUM_MICROBATCHES)
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM[variant])
        opt.step()
        opt.zero_grad()
        history.append((float(loss), float(norm)))
    return history, models.parameters(model.named_parameters(remove_duplicate=False))


@pytest.fixture(scope="module")
def trained():
    """Launch the processes for one number of ranks when they are first asked for."""
    found = {}

    def of(num_ranks):
        if num_ranks not in found:
            schedules = {key: _schedule(*key[:2]) for key in CASES if key[0] == num_ranks}
            found[num_ranks] = values(launch(train_all, num_ranks, schedules, timeout=200))
        return found[num_ranks]

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: "p{}-{}-{}".format(*case))
def test_training_is_the_same_bits_as_on_one_rank(case, trained):
    expected_history, expected_initial, expected = trained(1)[0][1, "1f1b", case[2]]
    of_ranks = [of_rank[case] for of_rank in trained(case[0])]
    for history, _, _ in of_ranks:
        assert history == expected_history
    models.assert_same_bits(models.merged([part[1] for part in of_ranks]), expected_initial)
    models.assert_same_bits(models.merged([part[2] for part in of_ranks]), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_rank_trains_like_a_plain_script_with_and_without_clipping(variant, trained):
    history, initial, final = trained(1)[0][1, "1f1b", variant]
    plain_history, plain_final = values(launch(train_plain, 1, initial, variant))[0]
    losses, norms, clipped = zip(*history, strict=True)
    assert 0 < clipped[-1] < NUM_STEPS, norms
    plain_losses, plain_norms = zip(*plain_history, strict=True)
    assert losses == pytest.approx(plain_losses, rel=1e-4)
    assert norms == pytest.approx(plain_norms, rel=1e-3)
    assert final.keys() == plain_final.keys()
    assert losses[0] == plain_losses[0]
    if variant == "tied":
        assert final[TIED[0]].tobytes() == final[TIED[1]].tobytes()
