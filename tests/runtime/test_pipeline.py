"""Does one process without torch.distributed do what a plain script does?"""

import copy

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.cases import NAMES, placed
from zerobubble import Pipeline, ScheduleError, UsageError, build
from zerobubble.errors import PipelineError
from zerobubble.ir import BW, B, F, Placement, Schedule, W, linear


@pytest.fixture(autouse=True)
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def pipeline(schedule=None, builders=None, **options):
    layers = models.built(builders or models.transformer())
    return Pipeline(layers, schedule or build("zb-h1", 1, 4), models.loss_fn, **options)


SCHEDULES = [*(build(name, 1, 4) for name in NAMES), placed(1, "three-stages", 4)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_one_rank_needs_no_launcher(schedule):
    pipe = pipeline(schedule)
    model = nn.Sequential(*models.built(models.transformer()))
    expected = models.plain_step(model, *models.tokens(8), 4)
    assert torch.equal(pipe.step(*models.tokens(8)), expected)
    assert not torch.distributed.is_initialized()
    models.assert_same_bits(
        models.gradients(pipe.named_parameters()), models.gradients(model.named_parameters())
    )


def test_more_ranks_without_a_launcher_are_refused_with_the_command():
    with pytest.raises(UsageError, match="torchrun --nproc-per-node 2, or initialise"):
        pipeline(build("1f1b", 2, 4))


def test_a_schedule_that_breaks_a_rule_is_refused():
    early = Schedule.from_ops("early", linear(1), 1, [[F(0, 0), W(0, 0), B(0, 0)]])
    with pytest.raises(ScheduleError, match="early: rank 0: W0 of stage 0 runs before B0"):
        pipeline(early)


def test_every_microbatch_meets_its_own_target():
    seen = []

    def loss_fn(output, target):
        seen.append((output.detach()[0, 0].item(), target[0].item()))
        return output.sum()

    schedule = Schedule.from_ops(
        "x", linear(1), 3, [[op(0, i) for i in range(3) for op in (F, BW)]]
    )
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    numbers = torch.arange(3.0)
    Pipeline([layer], schedule, loss_fn).step(numbers.view(3, 1), numbers * 10)
    assert seen == [(0, 0), (1, 10), (2, 20)]


@pytest.mark.parametrize("m", [3, 5, 7])
def test_the_loss_is_divided_as_in_a_plain_script(m):
    """Multiplying by 1/m would round differently for about a third of all losses."""
    pipe = Pipeline([nn.Identity()], build("1f1b", 1, m), lambda output, target: output.mean())
    for seed in range(20):
        x = torch.rand(m, generator=torch.Generator().manual_seed(seed))
        expected = sum(part.mean() / m for part in x.chunk(m))
        assert float(pipe.step(x, x)) == float(expected)


def test_the_loss_is_the_mean_over_microbatches():
    schedule = build("1f1b", 1, 3)
    pipe = Pipeline([nn.Identity()], schedule, lambda output, target: (output * target).mean())
    loss = pipe.step(torch.tensor([1.0, 2.0, 6.0]), torch.ones(3))
    assert loss.item() == pytest.approx(3.0)
    assert loss.shape == ()


def test_a_failed_step_says_where():
    class Picky(nn.Module):
        def forward(self, x):
            if x.shape[-1] == 3:
                raise KeyError("three")
            return x

    pipe = pipeline(builders=[Picky, *models.transformer()])
    pipe.step(*models.tokens(8))
    with pytest.raises(PipelineError) as raised:
        pipe.step(*models.tokens(8, length=3))
    assert str(raised.value) == "rank 0, F0 of stage 0, step 2: KeyError: 'three'"
    assert isinstance(raised.value.__cause__, KeyError)


def test_evaluation_gives_every_layer_its_own_mode_back():
    class Modes(nn.Dropout):
        seen: tuple[bool, ...] = ()

        def forward(self, x):
            self.seen = (*self.seen, self.training)
            return super().forward(x)

    layers = [models.embedding(), Modes(), Modes().eval(), models.Head()]
    pipe = Pipeline(layers, build("1f1b", 1, 1), models.loss_fn)
    for run in (pipe.step, pipe.eval, pipe.step):
        run(*models.tokens(1))
    assert layers[1].seen == (True, False, True)
    assert layers[2].seen == (False, False, False)


def test_timelines_are_kept_for_the_last_steps_only():
    pipe = pipeline(num_recorded_steps=2)
    assert pipe.timelines() == []
    for expected in (1, 2, 2):
        pipe.step(*models.tokens(8))
        assert len(pipe.timelines()) == expected


def test_options_beside_a_finished_optimizer_are_refused():
    pipe = pipeline()
    finished = torch.optim.SGD([p for _, p in pipe.named_parameters()], lr=0.1)
    with pytest.raises(UsageError, match=r"options \['lr'\] need an optimizer class"):
        pipe.optimizer(finished, lr=0.2)
    with pytest.raises(UsageError, match="validate must be 'post' or 'sync', not 'never'"):
        pipe.optimizer(finished, validate="never")
    assert pipe.optimizer(finished).inner is finished


def test_gradients_of_two_steps_add_up_and_go_with_the_optimizer_step():
    pipe = pipeline()
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1)
    pipe.step(*models.tokens(8))
    once = models.gradients(pipe.named_parameters())
    pipe.step(*models.tokens(8))
    twice = models.gradients(pipe.named_parameters())
    assert all((abs(twice[name] - 2 * once[name]) < 1e-5).all() for name in once)
    opt.step()
    assert all(p.grad is None for _, p in pipe.named_parameters())


class Raising(nn.Module):
    """Raises when told to."""

    def __init__(self):
        super().__init__()
        self.linear, self.fails = nn.Linear(4, 4), False

    def forward(self, x):
        if self.fails:
            raise ValueError("broken")
        return self.linear(x)


def test_a_pipeline_that_has_failed_refuses_to_go_on():
    layer = Raising()
    pipe = Pipeline([layer], build("zb-h1", 1, 2), nn.functional.mse_loss)
    batch = torch.ones(4, 4)
    layer.fails = True
    with pytest.raises(PipelineError, match="ValueError: broken"):
        pipe.step(batch, batch)
    layer.fails = False
    with pytest.raises(PipelineError, match="this pipeline has stopped: rank 0, F0 of stage 0"):
        pipe.step(batch, batch)


def test_a_loss_without_a_graph_is_refused():
    pipe = Pipeline([nn.Linear(4, 4)], build("1f1b", 1, 2), lambda x, y: (x - y).mean().detach())
    with pytest.raises(PipelineError, match="the loss has no graph: does loss_fn detach it"):
        pipe.step(torch.ones(4, 4), torch.ones(4, 4))


def test_an_error_that_has_nothing_to_do_with_a_peer_does_not_blame_one():
    from zerobubble.runtime.failure import naming_the_cause

    with pytest.raises(PipelineError) as failure, naming_the_cause(0, "optimizer step 1"):
        raise RuntimeError("out of memory")
    assert str(failure.value) == "rank 0, optimizer step 1: RuntimeError: out of memory"


def test_a_name_is_no_schedule():
    with pytest.raises(UsageError, match="schedule must be a Schedule, such as zb"):
        Pipeline([nn.Linear(4, 4)], "zb-h1", nn.functional.mse_loss)


def test_a_loss_scaler_serves_one_optimizer():
    from zerobubble.runtime import LossScaler

    pipe = pipeline()
    pipe.optimizer(torch.optim.SGD, lr=0.1, loss_scaler=LossScaler())
    with pytest.raises(UsageError, match="a loss scaler serves only one optimizer"):
        pipe.optimizer(torch.optim.SGD, lr=0.1)
    with pytest.raises(UsageError, match=r"must be a LossScaler or a torch\.amp\.GradS"):
        pipeline().optimizer(torch.optim.SGD, lr=0.1, loss_scaler=8)


def test_a_disabled_grad_scaler_scales_nothing():
    opt = pipeline().optimizer(
        torch.optim.SGD, lr=0.1, loss_scaler=torch.amp.GradScaler("cpu", enabled=False)
    )
    assert opt.loss_scaler is None


def test_the_scale_reaches_the_gradients_but_not_the_loss():
    from zerobubble.runtime import LossScaler

    plain, scaled = pipeline(), pipeline()
    scaled.optimizer(torch.optim.SGD, lr=0.1, loss_scaler=LossScaler(4.0))
    assert torch.equal(plain.step(*models.tokens(8)), scaled.step(*models.tokens(8)))
    expected = models.gradients(plain.named_parameters())
    actual = models.gradients(scaled.named_parameters())
    models.assert_same_bits(actual, {name: 4 * value for name, value in expected.items()})


def test_master_weights_are_refused_for_an_optimizer_that_has_stepped():
    pipe = Pipeline([nn.Linear(2, 2).bfloat16()], build("1f1b", 1, 1), nn.functional.mse_loss)
    inner = torch.optim.AdamW([p for _, p in pipe.named_parameters()])
    batch = torch.ones(2, 2, dtype=torch.bfloat16)
    pipe.step(batch, batch)
    inner.step()
    with pytest.raises(UsageError, match="need an optimizer that has not stepped"):
        pipe.optimizer(inner, master_weights=True)


def test_an_optimizer_goes_on_from_its_state():
    """Also with masters, whose low bits are in no parameter, and with the scale of the loss."""
    from zerobubble.runtime import LossScaler

    layers = [nn.Linear(4, 4).bfloat16()]
    batch = torch.randn(4, 4).bfloat16()

    def build_both():
        pipe = Pipeline([copy.deepcopy(layers[0])], build("zb-h1", 1, 2), nn.functional.mse_loss)
        scaler = LossScaler(2.0, growth_interval=2)
        options = {"lr": 0.1, "loss_scaler": scaler, "master_weights": True}
        return pipe, pipe.optimizer(torch.optim.AdamW, **options)

    pipe, opt = build_both()
    for _ in range(3):
        pipe.step(batch, batch)
        opt.step()
    other, again = build_both()
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    for left, optimizer in ((pipe, opt), (other, again)):
        left.step(batch, batch)
        optimizer.step()
    for (_, p), (_, q) in zip(pipe.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q)
    assert again.loss_scaler.scale == opt.loss_scaler.scale == 8.0
    assert again.num_steps == 4
    plain = pipeline().optimizer(torch.optim.AdamW, lr=0.1)
    with pytest.raises(UsageError, match="is of an optimizer with other parameters"):
        plain.load_state_dict(opt.state_dict())


class _Exponential(nn.Module):
    """Needs its own output for its gradient."""

    def forward(self, x):
        return x.exp()


class _Doubled(nn.Module):
    """Writes over its input."""

    def forward(self, x):
        return x.mul_(2)


def test_a_stage_that_overwrites_what_the_one_before_needs_is_an_error_as_in_one_graph():
    layers = [nn.Linear(4, 4), _Exponential(), _Doubled(), nn.Linear(4, 1)]
    ops = [F(0, 0), F(1, 0), BW(1, 0), BW(0, 0)]
    schedule = Schedule.from_ops("mine", Placement((0, 0)), 1, [ops])
    pipe = Pipeline(layers, schedule, nn.functional.mse_loss)
    with pytest.raises(PipelineError, match=r"BW0 of stage 0.*modified by an inplace operation"):
        pipe.step(torch.ones(2, 4), torch.ones(2, 1))
