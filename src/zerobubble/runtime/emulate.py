"""How is a pipeline of many ranks measured on a few cores? Its stages take time without computing.

An emulated stage sleeps through its F, B and W, so that any number of ranks share a core, and the
runtime around it is the real one: executor, messages, transport, queues of W and optimizer. Its
times are those of a *device clock* with a modelled link. Every boundary tensor carries the device
time at which its sender's op ended; the op that reads it starts as soon as its own device is free
and the tensor has travelled. O and L take their time on two copy engines of the device, beside its
ops, while the real copies run. A host that is late therefore costs nothing, as beside a real device
that has work in its queue, until another rank really waits for it.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from zerobubble.autograd import current_queue
from zerobubble.costs import Costs
from zerobubble.ir import Kind, Op, Schedule
from zerobubble.runtime.watch import watch

# A wait for a message that is there takes some 20 us; a rank that waited longer was blocked.
_BLOCKED_S = 2e-4
_SET_TIMER_SLACK = 29

Milliseconds = float
Slice = tuple[Milliseconds, Milliseconds]


class Host(Protocol):
    """The real clock."""

    def now_ms(self) -> Milliseconds:
        """Return the time, on a clock that all ranks share."""

    def sleep_until(self, ms: Milliseconds) -> None:
        """Return at a time, or at once if it has passed."""


class MonotonicHost:
    """The monotonic clock of this machine, and sleep as exact as the system allows."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1)

    def now_ms(self) -> Milliseconds:
        """Return the time since this machine was started."""
        return time.monotonic_ns() / 1e6

    def sleep_until(self, ms: Milliseconds) -> None:
        """Sleep until a time, if it lies ahead."""
        left = ms - self.now_ms()
        if left > 0:
            time.sleep(left / 1e3)


class Device:
    """The device clock of one rank.

    Attributes:
        free_ms: when the last op ends.
        free_out_ms: when the engine for copies to the host has ended its last one.
        free_in_ms: likewise that for copies back.
        ops: start and end of every op and copy run so far, in the order of the rank.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.free_ms = self.free_out_ms = self.free_in_ms = host.now_ms()
        self.ops: list[Slice] = []

    def run(self, duration: Milliseconds, ready: Milliseconds = 0.0) -> Milliseconds:
        """Run an op whose input is there at ``ready``; return the device time of its end."""
        start = max(self.free_ms, ready)
        self.free_ms = start + duration
        self.ops.append((start, self.free_ms))
        self.host.sleep_until(self.free_ms)
        return self.free_ms

    def begin_offload(self, duration: Milliseconds) -> Slice:
        """Copy what the last op has made to the host, when the engine is free."""
        start = max(self.free_ms, self.free_out_ms)
        self.free_out_ms = start + duration
        return start, self.free_out_ms

    def begin_load(self, duration: Milliseconds) -> Slice:
        """Copy back from now on, when the engine is free."""
        start = max(self.free_ms, self.free_in_ms)
        self.free_in_ms = start + duration
        self.ops.append((start, self.free_in_ms))
        return start, self.free_in_ms

    def wait_for(self, end: Milliseconds) -> None:
        """Let the next op start no earlier than a copy ends."""
        self.free_ms = max(self.free_ms, end)
        self.host.sleep_until(self.free_ms)

    def waited(self, seconds: float) -> None:
        """Note that the host waited for another rank: the device had nothing to do until now.

        A message that came before its modelled time changes nothing, since the op that reads it
        starts later anyway.
        """
        if seconds > _BLOCKED_S:
            self.free_ms = max(self.free_ms, self.host.now_ms())


class _Times(NamedTuple):
    """The times of one stage: of its ops, and of the links to its neighbours."""

    forward: Milliseconds
    backward_input: Milliseconds
    backward_weight: Milliseconds
    recompute: Milliseconds
    link_before: Milliseconds
    link_after: Milliseconds


class EmulatedStage(nn.Module):
    """A stage that passes on messages ``[time, microbatch]`` and takes its time for each.

    Args:
        times: of its ops and links.
        undivided: the microbatches whose backward is one op, BW.
        device: the clock of the rank.
    """

    def __init__(self, times: _Times, undivided: frozenset[int], device: Device) -> None:
        super().__init__()
        self.times = times
        self.undivided = undivided
        self.device = device
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, message: Tensor) -> Tensor:
        """Run F."""
        queue = None if int(message[0, 1]) in self.undivided else current_queue()
        if torch.is_grad_enabled() and not message.requires_grad:
            message = message.detach().requires_grad_()  # so that the first stage has a B too
        output: Tensor = _Emulated.apply(message, self.weight, self, queue)  # type: ignore[no-untyped-call]
        return output


class _WeightGradient:
    """W of an emulated stage, as the queue runs it."""

    op = "an emulated stage"

    def __init__(self, stage: EmulatedStage) -> None:
        self.stage = stage
        self.parameters = (stage.weight,)

    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        """Run W."""
        self.stage.device.run(self.stage.times.backward_weight)
        return (torch.ones(1),)

    def add_to(self, gradient: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...] | None:
        """Leave the addition to the queue."""
        return None


class _Emulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, message: Tensor, weight: Tensor, stage: EmulatedStage, queue: Any) -> Any:
        ctx.stage, ctx.queue = stage, queue
        times = stage.times
        if _kind_at_work() is Kind.R:
            return _stamped(message, stage.device.run(times.recompute))
        end = stage.device.run(times.forward, float(message[0, 0]) + times.link_before)
        return _stamped(message, end)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), stage, queue = gradients, ctx.stage, ctx.queue
        times, ready = stage.times, float(gradient[0, 0]) + stage.times.link_after
        if queue is None:
            end = stage.device.run(times.backward_input + times.backward_weight, ready)
            return _stamped(gradient, end), torch.ones(1), None, None
        end = stage.device.run(times.backward_input, ready)
        queue.push(_WeightGradient(stage), gradient, gradient)
        return _stamped(gradient, end), None, None, None


def _kind_at_work() -> Kind | None:
    """Name the kind of the op that the executor runs now."""
    return watch.work.kind if isinstance(watch.work, Op) else None


def _stamped(message: Tensor, end: Milliseconds) -> Tensor:
    stamped = message.detach().clone()
    stamped[0, 0] = end
    return stamped


def emulated_stages(
    schedule: Schedule, costs: Costs, device: Device
) -> list[Callable[[], EmulatedStage]]:
    """Make the layers of a Pipeline, one for each stage, that take the times of the costs.

    The batch for them is :func:`emulated_batch`, the loss :func:`emulated_loss`.

    Raises:
        UsageError: the costs are for another number of stages.
    """
    costs.require_stages(schedule.num_stages, schedule.name)
    holders = np.asarray(schedule.placement.stage_to_rank)
    links = np.where(holders[:-1] != holders[1:], costs.transfer[:-1], 0.0)
    columns = (
        costs.forward,
        costs.backward_input,
        costs.backward_weight,
        costs.recompute,
        np.append(0.0, links),
        np.append(links, 0.0),
    )
    kinds, stages, microbatches = schedule.fields(schedule.flat()[0])
    return [
        partial(
            EmulatedStage,
            _Times(*(float(column[stage]) for column in columns)),
            frozenset(microbatches[(kinds == Kind.BW) & (stages == stage)].tolist()),
            device,
        )
        for stage in range(schedule.num_stages)
    ]


def emulated_batch(num_microbatches: int) -> Tensor:
    """Make the first stage's input: messages that have always been there; shape (m, 2)."""
    return torch.arange(num_microbatches, dtype=torch.float64)[:, None] * torch.tensor([0.0, 1.0])


def emulated_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return 0 with a gradient of zeros, a message that has always been there, for the last B."""
    return (output * 0).sum()
