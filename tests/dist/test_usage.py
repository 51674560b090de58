"""Is a user's mistake answered by one clear line on the rank that sees it?"""

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import attempt, launch, values
from zerobubble import Pipeline, build
from zerobubble.runtime import LossScaler



def two_ranks(layers=None, schedule=None, loss_fn=models.loss_fn, **options):
    layers = layers or models.built(models.transformer(4))
    return Pipeline(layers, schedule or build("1f1b", 2, 2), loss_fn, **options)


ENDS = ("0.weight", "1.weight")


def frozen(layer):
    return layer.requires_grad_(False)


def build_wrong_pipelines(rank, world_size):
    """Attempt mistakes that every rank sees before anything is sent."""
    head = nn.Linear(8, 8)
    shared = [head, nn.Linear(8, 8), head]
    linears = [nn.Linear(8, 8) for _ in range(4)]
    return {
        "stages": attempt(two_ranks, models.transformer(3), build("interleaved", 2, 2)),
        "world": attempt(two_ranks, schedule=build("1f1b", 3, 2)),
        "device": attempt(two_ranks, device="cuda"),
        "unknown-device": attempt(two_ranks, device="abacus"),
        "shared": attempt(two_ranks, shared),
        "counts": attempt(two_ranks, layers_per_stage=(3, 2)),
        "tied-one": attempt(two_ranks, tied=[("0.weight",)]),
        "tied-twice": attempt(two_ranks, linears, tied=[ENDS, ("1.weight", "3.weight")]),
        "tied-layer": attempt(two_ranks, tied=[("0.weight", "9.weight")]),
        "tied-form": attempt(two_ranks, tied=[("weight", "0.weight")]),
        "tied-shapes": attempt(two_ranks, [nn.Linear(8, 8), nn.Linear(8, 4)], tied=[ENDS]),
        "tied-frozen": attempt(two_ranks, [nn.Linear(8, 8), frozen(nn.Linear(8, 8))], tied=[ENDS]),
    }


EXPECTED = {
    "stages": "4 stages need at least as many layers, but there are 3: use fewer ranks or stages,",
    "world": "the schedule is for 3 ranks, but 2 processes run: start as many processes as ranks",
    "device": "device cuda: no CUDA device is available here",
    "unknown-device": "device 'abacus' is unknown: use cpu, cuda or cuda:0",
    "shared": "layers 0 and 2 share a parameter but are on ranks 0 and 1: give each its own and "
    "pass tied=[('0.weight', '2.weight')]",
    "counts": "layers per stage [3, 2] must be 2 positive numbers that add up to 4",
    "tied-one": "tied parameters ['0.weight']: name at least two",
    "tied-twice": "tied parameter '1.weight' is in two groups: put all its copies in one",
    "tied-layer": "tied parameter '9.weight': write layer number.parameter name",
    "tied-form": "tied parameter 'weight': write layer number.parameter name",
    "tied-shapes": "the copies of a tied parameter of shape [",
    "tied-frozen": "the copies of a tied parameter of shape [8, 8] differ in shape or dtype, or ",
}


@pytest.fixture(scope="module")
def mistakes():
    return values(launch(build_wrong_pipelines, 2, 2))


@pytest.mark.parametrize("mistake", EXPECTED)
def test_a_mistake_is_named_on_every_rank(mistake, mistakes):
    for of_rank in mistakes:
        name, message = of_rank[mistake]
        assert name == "UsageError", message
        assert message.startswith(EXPECTED[mistake])
        assert "\n" not in message


def not_a_module():
    return "a string"


class Named(nn.Module):
    """Returns a value that cannot travel."""

    def forward(self, x):
        return x.float(), Named


class Counting(nn.Module):
    """Returns a constant that follows from something else than the batch's shapes."""

    num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return x, self.num_calls


class Thawing(nn.Linear):
    """Is trained from its third forward on, which is in the second step."""

    num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        self.requires_grad_(self.num_calls > 2)
        return super().forward(x.float())


class First(nn.Module):
    def forward(self, value):
        return value[0]


def vector_loss(output, target):
    return (output.flatten(0, 1) - 1).square().mean(-1)


def one_mistake(rank, mistake):
    """Make a mistake that one rank sees first; give the batch to all ranks."""
    layers = models.built(models.transformer(4))
    x, y = models.tokens(8)
    if mistake == "not-a-module":
        layers[3] = not_a_module
    elif mistake == "unknown-tied":
        two_ranks(tied=[("0.weight", "3.out.wait")])
    elif mistake == "unsupported-output":
        layers[1] = Named()
    elif mistake == "changing-output":
        layers[1:3] = [Counting(), First()]
    elif mistake == "thawing":
        layers = [Thawing(models.LENGTH, 8), nn.Tanh(), models.MLP(), nn.Linear(8, 8)]
    elif mistake == "too-few":
        x, y = x[:1], y[:1]
    elif mistake == "other-y":
        y = y[:7]
    elif mistake == "other-schedule" and rank == 1:
        two_ranks(layers, build("zb-h1", 2, 2)).step(x, y)
    elif mistake == "other-call" and rank == 1:
        two_ranks(layers).eval(x, y)
    elif mistake == "no-x":
        x = None
    elif mistake == "no-y":
        y = None
    losses = {"vector-loss": vector_loss, "thawing": lambda output, target: output.mean()}
    loss_fn = losses.get(mistake, models.loss_fn)
    pipe = two_ranks(layers, loss_fn=loss_fn)
    for _ in range(2):
        pipe.step(x, y)
    return "finished"


def make_optimizers(rank, world_size):
    """Attempt optimizers that cannot agree, or that cannot be, on a pipeline for each."""
    adamw, sgd = torch.optim.AdamW, torch.optim.SGD

    def make(optimizer=adamw, layers=None, options=(), **settings):
        pipe = two_ranks(layers, **dict(options))
        if not isinstance(optimizer, type):
            optimizer = optimizer(pipe)
        return attempt(pipe.optimizer, optimizer, **settings)

    def some_copies(pipe):
        named = pipe.named_parameters()
        return sgd([p for name, p in named if not (rank and "weight" in name)], lr=1.0)

    alike = [nn.Linear(8, 8), nn.Linear(8, 8)]
    scaler = LossScaler() if rank else None
    return {
        "norms": make(max_grad_norm=1.0 + rank),
        "ways": make(validate=("post", "sync")[rank]),
        "scalers": make(loss_scaler=scaler),
        "text": make(max_grad_norm="1.0"),
        "closure": make(torch.optim.LBFGS),
        "strangers": make(lambda _: adamw([nn.Parameter(torch.ones(3))])),
        "copies": make(some_copies, alike, {"tied": [ENDS]}),
    }


DIFFERENT = {
    "norms": "ranks 0 and 1 have max_grad_norm 1.0 and 2.0: give all ranks the same",
    "ways": "ranks 0 and 1 have validate post and sync: give all ranks the same",
    "scalers": "ranks 0 and 1 have loss scaler None and {",
    "text": "max_grad_norm must be a positive number, not '1.0'",
    "closure": "LBFGS evaluates the loss again within its step, which a pipeline cannot: use",
    "strangers": "the optimizer has a parameter of shape [3] that is not this rank's: make it",
    "copies": "an optimizer steps only some of the copies of a tied parameter of shape [8, 8]: ",
}


def test_an_optimizer_that_cannot_be_is_named_on_every_rank():
    for of_rank in values(launch(make_optimizers, 2, 2)):
        assert of_rank.keys() == DIFFERENT.keys()
        for key, (name, message) in of_rank.items():
            assert name == "UsageError", message
            assert message.startswith(DIFFERENT[key])


class Masked(nn.Module):
    def forward(self, x, value=None):
        return x if value is None else x * value


def give_to_some(rank):
    """Give a keyword, of a name that the stage's own argument has, to one rank only."""
    pipe = two_ranks([nn.Linear(8, 8), Masked(), Masked(), nn.Linear(8, 8)], loss_fn=nn.MSELoss())
    x = torch.ones(4, 8)
    pipe.step(x, x, value=x)
    pipe.step(x, x)
    pipe.step(x, x, **({} if rank else {"value": x}))


def test_a_keyword_that_only_some_ranks_were_given_is_refused():
    first, second = launch(give_to_some, 2, timeout=40)
    assert second.error == (
        "UsageError",
        "keyword 'value' was given to some ranks only, although layers on others up to rank 1 take "
        "it: give it to all, or to none",
    )
    assert first.error[0] == "PipelineError"
    assert "keyword 'value' was given to some ranks only" in first.error[1]


def go_on_after_a_mistake(rank, sizes_of_x, sizes_of_y):
    """Catch the error of a batch that cannot be, on every rank, and try a good one."""
    pipe = two_ranks(models.built([lambda: nn.Linear(8, 8)] * 2), loss_fn=nn.MSELoss())
    batch = torch.ones(8, 8)
    sizes = zip(sizes_of_x, sizes_of_y, strict=True)
    return [attempt(pipe.step, batch[:n], batch[:m]) for n, m in sizes]


@pytest.mark.parametrize(("sizes_of_x", "sizes_of_y"), [((1, 8), (1, 8)), ((8, 8), (7, 8))])
def test_a_pipeline_whose_batch_failed_on_one_rank_has_stopped_on_all(sizes_of_x, sizes_of_y):
    for first, second in values(launch(go_on_after_a_mistake, 2, sizes_of_x, sizes_of_y, timeout=40)):
        assert first[0] in ("UsageError", "PipelineError")
        assert second[0] == "PipelineError"
        assert second[1].startswith("this pipeline has stopped: ")


def load_what_fits_one_rank(rank):
    """Load states that cannot be, and say whether anything has changed."""
    pipe = two_ranks([nn.Linear(8, 8), nn.Linear(8, 8)])
    before = models.parameters(pipe.named_parameters())
    short = {f"{i}.{name}": torch.zeros(8, 8) for i in range(2) for name in ("weight", "bias")}
    short |= {"0.bias": torch.zeros(8), "1.bias": torch.zeros(7)}
    told = [attempt(pipe.load_state_dict, state) for state in (short, [1], {3: torch.ones(1)})]
    models.assert_same_bits(models.parameters(pipe.named_parameters()), before)
    return told


def test_a_state_that_does_not_fit_one_rank_is_loaded_on_none():
    for misshapen, of_list, of_numbers in values(launch(load_what_fits_one_rank, 2)):
        message = "this state does not fit layers [1]: ['1.bias [7] for [8]'] have other shapes"
        assert misshapen == ("UsageError", message)
        assert of_list == ("UsageError", "a state is a dict of names and tensors, not list")
        assert of_numbers == ("UsageError", "a state is a dict of names and tensors, not dict")


def mistake_between_steps(rank, mistake):
    """Call something on one rank only, while a guess is pending."""
    pipe = two_ranks()
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1e3, validate="post")
    for _ in range(3):
        pipe.step(*models.tokens(8))
        if not (mistake == "no-step" and rank == 1):
            opt.step()
        if mistake == "synchronize" and rank == 0:
            opt.synchronize()


@pytest.mark.parametrize("mistake", ["synchronize", "no-step"])
def test_ranks_that_treat_the_optimizer_in_different_ways_are_told_at_once(mistake):
    outcomes = launch(mistake_between_steps, 2, mistake, timeout=40)
    assert [outcome.exit_code for outcome in outcomes] == [1, 1]
    messages = [outcome.error[1] for outcome in outcomes]
    assert any("ranks 0 and 1 do not run the same" in message for message in messages), messages


FIRST_TO_SEE = {
    "not-a-module": (1, "UsageError", "layer 3 must be a module or a callable without arguments"),
    "unknown-tied": (1, "UsageError", "tied parameter '3.out.wait' does not exist; layer 3 has ["),
    "too-few": (0, "UsageError", "a batch with 1 samples cannot be split into 2 microbatches"),
    "other-y": (1, "UsageError", "the target y has a tensor of shape [7, 5], but the batch has 8 sam"),
    "other-schedule": (1, "UsageError", "ranks 0 and 1 do not run the same: all ranks must be"),
    "other-call": (1, "UsageError", "ranks 0 and 1 do not run the same: all ranks must be given"),
    "no-x": (0, "UsageError", "rank 0 holds stage 0 and needs x"),
    "no-y": (1, "UsageError", "rank 1 holds stage 1 and needs y"),
    "unsupported-output": (
        0,
        "PipelineError",
        "rank 0, F0 of stage 0, step 1: UsageError: the output of stage 0 holds a type: only",
    ),
    "changing-output": (
        0,
        "PipelineError",
        "rank 0, F1 of stage 0, step 1: UsageError: the output of stage 0 changed from "
        "(float32[4, 5, 8] with gradient, 1) to (float32[4, 5, 8] with gradient, 2) although the "
        "batch has the same shapes",
    ),
    "thawing": (
        0,
        "PipelineError",
        "rank 0, F0 of stage 0, step 2: UsageError: the output of stage 0 changed from "
        "(float32[4, 8]) to (float32[4, 8] with gradient) although the batch has the same shapes: "
        "a stage's output must follow from the batch's shapes; after freezing or unfreezing "
        "parameters, build the pipeline anew",
    ),
    "vector-loss": (
        1,
        "PipelineError",
        "rank 1, F0 of stage 1, step 1: UsageError: loss_fn must return a tensor with one value, "
        "not one of shape [20]",
    ),
}


@pytest.mark.parametrize("mistake", FIRST_TO_SEE)
def test_a_mistake_is_named_by_the_rank_that_sees_it_and_stops_the_other(mistake):
    outcomes = launch(one_mistake, 2, mistake, timeout=40)
    rank, error, message = FIRST_TO_SEE[mistake]
    assert outcomes[rank].error is not None
    assert outcomes[rank].error[0] == error, outcomes[rank].traceback
    assert outcomes[rank].error[1].startswith(message)
    assert "\n" not in outcomes[rank].error[1]
    assert not any(outcome.timed_out for outcome in outcomes)
    assert [outcome.exit_code for outcome in outcomes] == [1, 1]


def build_alone(rank, num_ranks):
    two_ranks(schedule=build("1f1b", num_ranks, 2))


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_two_processes_refuse_a_schedule_for_another_number(num_ranks):
    message = f"the schedule is for {num_ranks} ranks, but 2 processes run: start as many"
    for outcome in launch(build_alone, 2, num_ranks, timeout=30):
        assert outcome.error is not None
        assert outcome.error[0] == "UsageError"
        assert outcome.error[1].startswith(message)


@pytest.mark.parametrize("max_grad_norm", [0, -1.0, float("nan")])
def test_a_norm_limit_must_be_positive(max_grad_norm):
    pipe = Pipeline([nn.Linear(2, 2)], build("1f1b", 1, 1), nn.functional.mse_loss)
    with pytest.raises(ValueError, match=f"max_grad_norm must be a positive number, not {max_grad_norm}"):
        pipe.optimizer(torch.optim.SGD, max_grad_norm=max_grad_norm)
