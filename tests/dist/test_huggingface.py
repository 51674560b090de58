"""Are losses and gradients those of the unpipelined Hugging Face model, for any stages?"""

import pytest
import torch

from tests.dist import models
from tests.dist.harness import launch, values
from tests.integrations import families
from zerobubble import Pipeline, build

NUM_MICROBATCHES, NUM_SAMPLES = 6, 12
PADDED = ("llama", "llama eager", "qwen2 windows", "gpt2", "gemma3")
CASES = [
    *((p, "zb-h1", family, False) for p in (1, 2, 3) for family in families.FAMILIES),
    *((p, "zb-v", family, True) for p in (1, 2, 3) for family in PADDED),
    *((p, name, "qwen2 windows", False) for p in (2, 3) for name in ("1f1b", "interleaved")),
    *((p, name, "gpt2", False) for p in (2, 3) for name in ("zb-v", "interleaved")),
]


def step_all(rank, num_ranks):
    """Run one step of every case; one rank alone also goes without a pipeline, once a family."""
    found = {case: step(*case) for case in CASES if case[0] == num_ranks}
    models_alone = {case[2:] for case in CASES} if num_ranks == 1 else ()
    return found | {of: plain(*of) for of in models_alone}


def step(num_ranks, schedule, family, padded):
    from zerobubble.integrations.huggingface import causal_lm

    model = causal_lm(families.config(family), sequence=families.LENGTH)
    pipe = Pipeline(model, build(schedule, num_ranks, NUM_MICROBATCHES))
    pipe.load_state_dict(own_part(pipe, families.whole(family).state_dict()))
    x, y, keywords = families.batch(NUM_SAMPLES, padded)
    loss = pipe.step(x, y, **keywords)
    state = {name: value.numpy().copy() for name, value in pipe.state_dict().items()}
    gradients = models.gradients(pipe.named_parameters())
    return loss.numpy(), gradients, state


def own_part(pipe, state):
    return {name: state[name] for name in pipe.state_dict()}


def plain(family, padded):
    model = families.whole(family)
    loss = families.plain_step(model, *families.batch(NUM_SAMPLES, padded), NUM_MICROBATCHES)
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    return loss.numpy(), models.gradients(model.named_parameters()), state


@pytest.fixture(scope="module")
def stepped():
    """Launch the processes for one number of ranks when they are first asked for."""
    found = {}

    def of(num_ranks):
        if num_ranks not in found:
            found[num_ranks] = values(launch(step_all, num_ranks, num_ranks))
        return found[num_ranks]

    return of


@pytest.mark.parametrize("case", CASES, ids="p{0[0]}-{0[1]}-{0[2]}-{0[3]}".format)
def test_loss_gradients_and_names_are_those_of_the_model(case, stepped):
    of_ranks = [results[case] for results in stepped(case[0])]
    plain_loss, plain_gradients, plain_state = stepped(1)[0][case[2:]]
    assert {float(loss) for loss, _, _ in of_ranks} == {float(plain_loss)}
    gradients = models.merged([part[1] for part in of_ranks])
    if tied := gradients.keys() - plain_gradients.keys():  # added in another order
        copy, first = tied.pop(), next(iter(plain_gradients))
        summed = gradients.pop(first) + gradients.pop(copy)
        assert abs(summed - plain_gradients[first]).max() < 1e-6
        plain_gradients = {k: v for k, v in plain_gradients.items() if k != first}
    models.assert_same_bits(gradients, plain_gradients)
    models.assert_same_bits(models.merged([part[2] for part in of_ranks]), plain_state)
