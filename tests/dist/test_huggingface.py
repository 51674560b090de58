"""Are losses and gradients those of the unpipelined Hugging Face model, for any stages?"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.dist import models
from tests.dist.harness import launch, values
from tests.integrations import families
from zerobubble import Pipeline, build

NUM_MICROBATCHES, NUM_SAMPLES = 6, 12
SAVED = ("llama", "gpt2", "mixtral")
PADDED = ("llama", "llama eager", "qwen2 windows", "gpt2", "gemma3")
CASES = [
    *((1, "zb-h1", family, True) for family in PADDED),
    *((p, "zb-h1", family, False) for p in (1, 2, 3) for family in families.FAMILIES),
    *((p, "zb-v", family, True) for p in (2, 3) for family in PADDED),
    *((2, name, "qwen2 windows", False) for name in ("1f1b", "interleaved")),
    (3, "interleaved", "gpt2", False),
]


def step_all(rank, num_ranks, folder):
    """Run one step of every case; one rank alone also goes without a pipeline, once a family."""
    found = {case: step(*case) for case in CASES if case[0] == num_ranks}
    if num_ranks == 2:
        found["dropout"] = [drop(schedule) for schedule in ("1f1b", "zb-h1")]
        found["saved"] = [save(family, folder) for family in SAVED]
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


def drop(schedule):
    """Run steps and an evaluation of a model with dropout."""
    from zerobubble.integrations.huggingface import causal_lm

    config = families.config("gpt2")
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.2
    pipe = Pipeline(causal_lm(config, sequence=families.LENGTH), build(schedule, 2, 4), seed=5)
    x, y, _ = families.batch(8)
    return float(pipe.step(x, y)), float(pipe.eval(x, y)), float(pipe.step(x, y))


def save(family, folder):
    """Save the model, load the folder again, and return which of its tensors this rank has read."""
    from zerobubble.integrations.huggingface import causal_lm, save_pretrained, weights

    read, plain = [], weights.Stored.read
    weights.Stored.read = lambda stored: read.append(stored.name) or plain(stored)
    model = causal_lm(families.config(family), sequence=families.LENGTH)
    pipe = Pipeline(model, build("zb-h1", 2, 4), seed=5)
    save_pretrained(pipe, model, folder / family)
    again = causal_lm(folder / family, sequence=families.LENGTH)
    assert read == []
    loaded = Pipeline(again, build("zb-h1", 2, 4))
    weights.Stored.read = plain
    states = [pipe.state_dict(), loaded.state_dict()]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    return read, {name: value.numpy().copy() for name, value in states[0].items()}


def own_part(pipe, state):
    return {name: state[name] for name in pipe.state_dict()}


def plain(family, padded):
    model = families.whole(family)
    loss = families.plain_step(model, *families.batch(NUM_SAMPLES, padded), NUM_MICROBATCHES)
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    return loss.numpy(), models.gradients(model.named_parameters()), state


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """Launch the processes for one number of ranks when they are first asked for."""
    found, folder = {}, tmp_path_factory.mktemp("saved")

    def of(num_ranks):
        if num_ranks not in found:
            found[num_ranks] = values(launch(step_all, num_ranks, num_ranks, folder))
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


def test_dropout_draws_the_same_under_any_schedule_and_not_in_an_evaluation(stepped):
    plain, split = stepped(2)[0]["dropout"]
    assert plain == split
    first, evaluated, second = plain
    assert len({first, evaluated, second}) == 3


@pytest.mark.parametrize("family", SAVED)
def test_ranks_save_files_of_their_own_and_read_only_their_own_tensors(family, stepped):
    parts = [of_rank["saved"][SAVED.index(family)] for of_rank in stepped(2)]
    read = [set(names) for names, _ in parts]
    assert all(read)
    assert len(read[0] & read[1]) == (1 if family == "gpt2" else 0)  # the tied matrix
    state = models.merged([state for _, state in parts])
    whole = families.whole(family).state_dict()
    assert sorted(state) == sorted(whole)


def test_transformers_loads_what_several_ranks_have_saved(stepped, tmp_path_factory):
    for number, family in enumerate(SAVED):
        parts = [of_rank["saved"][number][1] for of_rank in stepped(2)]
        folder = tmp_path_factory.getbasetemp() / "saved0" / family
        assert len(list(folder.glob("*.safetensors"))) == 2
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        found = {name: value.numpy() for name, value in loaded.state_dict().items()}
        models.assert_same_bits(found, models.merged(parts))
