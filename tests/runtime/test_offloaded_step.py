"""Which activations are alive within a step of one rank that offloads? No more than without."""

import gc

import pytest
import torch
from torch import nn

from zerobubble import Pipeline, PipelineError, UsageError
from zerobubble.ir import BW, B, F, L, O, Placement, R, Schedule, W

NUM_BLOCKS, WIDTH = 6, 64


@pytest.fixture(autouse=True)
def no_cycles():
    """Let memory go by counting references alone, as it must between two collections."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Block(nn.Module):
    """A light and a heavy layer; calls a probe within the backward."""

    def __init__(self, probe):
        super().__init__()
        self.norm, self.linear, self.probe = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), probe

    def forward(self, x):
        y = self.linear(self.norm(x)).tanh()
        if y.requires_grad:
            y.register_hook(lambda _: self.probe())
        return y


def on_one_rank(*ops, num_stages=1):
    num_microbatches = 1 + max(op.microbatch for op in ops)
    return Schedule.from_ops("ops", Placement((0,) * num_stages), num_microbatches, [ops])


def mean_square(output, target):
    return (output - target).square().mean()


def two_steps(build_layers, schedule, **settings):
    """Run two steps; give the pipeline, which a layer's probe may ask within them too."""
    pipe = Pipeline(build_layers(lambda: pipe), schedule, mean_square, **settings)
    pipe.ledger.is_on = True
    batch = torch.ones(64 * schedule.num_microbatches, WIDTH)
    for _ in range(2):
        pipe.step(batch, batch)
    pipe.offloading.close()
    return pipe


def each(*kinds):
    return [kind(0, i) for i in range(2) for kind in kinds]


@pytest.mark.parametrize("recompute", ["off", "light"])
@pytest.mark.parametrize("backward", [(BW,), (B, W)], ids=["BW", "B-W"])
@pytest.mark.parametrize("move", [(O, L), (R,)], ids=["O-L", "R"])
def test_memory_falls_within_the_backward_as_without_offload(move, backward, recompute):
    def seen(schedule):
        found = []

        def build_layers(pipe):
            probe = lambda: found.append(pipe().ledger.activations.live_bytes())  # noqa: E731
            return [Block(probe) for _ in range(NUM_BLOCKS)]

        pipe = two_steps(build_layers, schedule, recompute=recompute)
        return found, pipe.ledger.activation_bytes

    plain, of_ops = seen(on_one_rank(*each(F, *backward)))
    assert len(plain) == 4 * NUM_BLOCKS
    assert plain == sorted(plain[:NUM_BLOCKS], reverse=True) * 4
    moved, of_moved_ops = seen(on_one_rank(*each(F, *move, *backward)))
    assert moved == plain
    assert of_moved_ops[-1] == of_ops[-1] == 0


class Rotated(nn.Module):
    """Multiplies by a view of what it makes in its first F, and keeps outside its buffers."""

    def __init__(self):
        super().__init__()
        self.linear, self.rotation = nn.Linear(WIDTH, WIDTH), None

    def forward(self, x):
        if self.rotation is None:
            self.rotation = torch.linspace(1, 2, 200 * WIDTH).view(200, WIDTH)
        return self.linear(x) * self.rotation[: len(x)]


def test_what_a_module_keeps_is_not_moved_with_every_microbatch():
    in_turn = [op for i in range(4) for op in (F(0, i), O(0, i))]
    back = [L(0, i) for i in range(4)] + [BW(0, i) for i in range(4)]
    plain = [F(0, i) for i in range(4)] + back[4:]
    found = [two_steps(lambda _: [Rotated()], on_one_rank(*ops)) for ops in (plain, in_turn + back)]
    for_all = 200 * WIDTH * 4
    of_ops, of_moved_ops = (pipe.ledger.activation_bytes for pipe in found)
    of_second_step = of_moved_ops[len(of_moved_ops) // 2 :]
    assert max(of_ops) == max(of_second_step) >= for_all
    assert min(of_ops) == min(of_second_step) == for_all
    assert max(of_moved_ops) - max(of_ops) == for_all, "the first copy left before it was known"


class Masked(nn.Module):
    """Multiplies by a mask that travels along; the first one makes it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x, mask = x if isinstance(x, tuple) else (x, x * 2)
        return self.linear(x) * mask, mask


def test_what_travels_with_a_microbatch_is_moved_by_every_stage():
    forward = [F(0, 0), F(1, 0), F(2, 0), O(2, 0), O(1, 0), O(0, 0)]
    backward = [op for stage in (2, 1, 0) for op in (L(stage, 0), BW(stage, 0))]
    layers = [Masked(), Masked(), First()]
    pipe = two_steps(lambda _: layers, on_one_rank(*forward, *backward, num_stages=3))
    assert pipe.ledger.activation_bytes[5] == 64 * WIDTH * 4, "the input of the second stage"


class First(nn.Module):
    def forward(self, values):
        return values[0]


class Overwriting(nn.Module):
    def forward(self, x):
        return x.mul_(2)


def test_a_stage_that_overwrites_what_another_offloads():
    """The stage before on the same rank saves its output for its own backward."""
    ops = [F(0, 0), F(1, 0), O(0, 0), BW(1, 0), L(0, 0), BW(0, 0)]
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    with pytest.raises(PipelineError, match="modified by an inplace operation"):
        two_steps(lambda _: [first, Overwriting()], on_one_rank(*ops, num_stages=2))


def test_recompute_full_is_for_the_schedule():
    message = "recompute must be 'off' or 'light', not 'full': for that, run a schedule with ops R"
    with pytest.raises(UsageError, match=message):
        two_steps(lambda _: [nn.Linear(WIDTH, WIDTH)], on_one_rank(*each(F, BW)), recompute="full")
