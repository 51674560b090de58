"""Which runs compare an optimizer that steps on a guess with one that waits? One worker for all."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils import _pytree as pytree

from tests.dist import models
from zerobubble import Pipeline
from zerobubble.runtime import LossScaler

WIDTH = 6
MAX_GRAD_NORM = 20.0
TO_CLIP, INF, NAN = 1e5, float("inf"), float("nan")


class First(nn.Module):
    """Changes the batch in place, so that a second run on the same tensors would show."""

    def forward(self, x):
        return x.mul_(0.5).clone()


class Block(nn.Module):
    """Draws from two generators, updates buffers and has a parameter that never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(
            WIDTH, eps=1.0
        )  # with few rows a small one means large gradients
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = nn.functional.dropout(self.norm(self.linear(x)), 0.25, self.training)
        return torch.tanh(x) + x * random.random() * float(np.random.random())


class Sparse(Block):
    """Looks up rows by the size of the input as well; their gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(5, WIDTH, sparse=True)

    def forward(self, x):
        return super().forward(x + self.rows((x[:, 0].abs() * 10).long() % 5))


class Half(nn.Module):
    """Computes in bfloat16, beside a layer in float32."""

    def __init__(self):
        super().__init__()
        self.low = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.full = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return torch.tanh(self.low(self.full(x.float()).bfloat16()))


def blocks(num_layers):
    return [First, *[Block] * (num_layers - 1)]


def halves(num_layers):
    return [First, *[Half] * (num_layers - 1)]


def linears(num_layers):
    return [First, *[lambda: nn.Linear(WIDTH, WIDTH)] * (num_layers - 1)]


def plain(num_layers):
    """Begin with a kernel that rounds in another way where rows are not aligned."""
    return [lambda: nn.Linear(WIDTH, WIDTH)] * num_layers


class Idle(nn.Linear):
    """Never uses its parameters."""

    def forward(self, x):
        return x * 1.0


def idle_in_the_middle(num_layers):
    ends = num_layers // 2
    middle = [lambda: Idle(WIDTH, WIDTH)] * (num_layers - 2 * ends + 1)
    return [*linears(ends), *middle, *plain(ends - 1)]


def sparse(num_layers):
    return [First, *[Sparse] * (num_layers - 1)]


class Lion(torch.optim.Optimizer):
    """Keeps state for each parameter, for all of them together, and in its groups."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "count": 0})

    def step(self):
        together = self.state["together"]
        together.setdefault("sums", []).append(torch.zeros(()))
        for group in self.param_groups:
            group["count"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 0.1)
                p.grad.zero_()  # nobody else should need it
                p.add_(mean.sign(), alpha=-group["lr"] / group["count"])
                together["sums"][-1] += mean.sum()


def adamw(pipe, optimizer=torch.optim.AdamW, lr=0.01, **options):
    return pipe.optimizer(optimizer, lr=lr, max_grad_norm=MAX_GRAD_NORM, **options)


def of_class(optimizer, **options):
    return partial(adamw, optimizer=optimizer, **options)


def groups(pipe, **options):
    """Two groups with their own options, given as an instance."""
    named = [p for _, p in pipe.named_parameters()]
    split = [[p for p in named if p.ndim > 1], [p for p in named if p.ndim == 1]]
    options_of = [{"lr": 0.05, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "weight_decay": 0.1}]
    inner = torch.optim.SGD([{"params": p, **o} for p, o in zip(split, options_of) if p], lr=1.0)
    return pipe.optimizer(inner, max_grad_norm=MAX_GRAD_NORM, **options)


def scaled(pipe, **options):
    scaler = LossScaler(2.0**8, growth_interval=3)
    return adamw(pipe, loss_scaler=scaler, **options)


def scaled_by_torch(pipe, **options):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    opt = adamw(pipe, loss_scaler=scaler, **options)
    opt.torch_scaler = scaler
    return opt


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        schedule: what the ranks run.
        num_steps: of the optimizer.
        optimizer: makes it from a pipeline.
        layers: lists builders of so many layers.
        spoils: the rank and the value that is put into one of its gradients, by step.
        accumulates: how many batches go into a step.
        options: of the pipeline.
    rows: samples of a microbatch.
        does: more of what users do: "schedules" and "changes" the learning rate, meets new
            "shapes" after every spoilt step, "evaluates", "freezes" rank 1, "hooks" into step.
    """

    schedule: object
    num_steps: int
    spoils: dict
    optimizer: Callable = adamw
    layers: Callable = blocks
    accumulates: int = 1
    options: dict = field(default_factory=dict)
    rows: int = 2
    does: tuple = ()


def compare(rank, cases):
    """Train every case in both ways."""
    return {
        key: tuple(train(rank, case, how) for how in ("sync", "post"))
        for key, case in cases.items()
    }


def train(rank, case, validate):
    """Train and return losses, everything that was trained, and counters."""
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    num_layers = case.schedule.num_stages + 1
    layers = models.built(case.layers(num_layers))
    pipe = Pipeline(
        layers,
        case.schedule,
        nn.functional.mse_loss,
        timeout=30,
        num_recorded_steps=200,
        **case.options,
    )
    if "freezes" in case.does and rank == 1:
        for _, p in pipe.named_parameters():
            p.requires_grad_(False)
    opt = case.optimizer(pipe, validate=validate)
    learner = Learner(case, rank, pipe, opt)
    losses = [learner.step(step) for step in range(case.num_steps)]
    state = opt.state_dict()
    recorded = {len(step.start) for step in pipe.recorder.steps_ms()}
    assert recorded == {len(case.schedule.orders[rank])}, "marks of abandoned ops are dropped"
    return losses, learned(pipe, state), state["counters"] | {"grad_norm": str(opt.grad_norm)}


class Learner:
    """Makes the steps of one case."""

    def __init__(self, case, rank, pipe, opt):
        self.case, self.rank, self.pipe, self.opt = case, rank, pipe, opt
        self.schedulers = []
        if "schedules" in case.does and opt.inner:
            self.schedulers.append(ExponentialLR(opt.inner, 0.9))
        self.hooked = []
        if "hooks" in case.does and rank == 0:
            opt.inner.register_step_post_hook(lambda *_: self.hooked.append(self.first_value()))

    def step(self, step):
        m, does = self.case.schedule.num_microbatches, self.case.does
        losses = []
        for part in range(self.case.accumulates):
            rows = self.case.rows + (sum(s < step for s in self.case.spoils) if "shapes" in does else 0)
            x = torch.randn(
                rows * m, WIDTH, generator=torch.Generator().manual_seed(7 * step + part)
            )
            losses.append(self.pipe.step(x, x.flip(1)))
        self.spoil(step)
        self.opt.step()
        if "changes" in does:
            for group in self.opt.param_groups:
                group["lr"] *= 0.9
        for scheduler in self.schedulers:
            scheduler.step()
        if "evaluates" in does and step % 3 == 0:
            losses.append(self.pipe.eval(x, x.flip(1)))
        return [float(loss) for loss in losses] + self.hooked

    def spoil(self, step):
        rank, value = self.case.spoils.get(step, (None, None))
        if rank == self.rank:
            named = self.pipe.named_parameters()
            biases = [
                p.grad for name, p in named if name.endswith("bias")
            ]  # neither sparse nor tied
            biases[-1][0] = value

    def first_value(self):
        return float(next(p for _, p in self.pipe.named_parameters()).view(-1)[0])


def learned(pipe, state):
    """List everything that training has changed: parameters, buffers, state, scale, generators."""
    stages = [stage.module.state_dict() for stage in pipe.stages.values()]
    rest = {key: value for key, value in state.items() if key != "counters"}
    leaves = pytree.tree_leaves((stages, rest))
    drawn = [torch.rand(1), random.random(), np.random.random()]
    return [
        str(x.dtype) + str(x.tolist()) if isinstance(x, torch.Tensor) else str(x)
        for x in leaves + drawn
    ]
