"""How long does a step of emulated stages take, beside the same step on paper?"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zerobubble.costs import Costs
from zerobubble.ir import Schedule
from zerobubble.measured import MeasuredRun
from zerobubble.runtime.emulate import (
    Device,
    MonotonicHost,
    emulated_batch,
)
from zerobubble.runtime.emulated_copies import emulated_pipeline
from zerobubble.runtime.pipeline import Pipeline
from zerobubble.simulate import simulate

VALIDATIONS = ("post", "sync")
_NUM_WARM_UP = 2
_SILENCE_S = 60.0


@dataclass(frozen=True)
class Measurement:
    """Simulated and measured times of the steps of one schedule, in milliseconds.

    Attributes:
        schedule: its name.
        validate: how the optimizer stepped, ``post`` or ``sync``.
        span: simulated time from step to step without a barrier.
        makespan: simulated time from step to step with one.
        measured: median real time from step to step.
        host_us_per_op: CPU time of the main thread, which sleeps while an op lasts, over the ops.
    """

    schedule: str
    validate: str
    span: float
    makespan: float
    measured: float
    host_us_per_op: float

    @property
    def ratio(self) -> float | None:
        """Measured time over what the simulation says for this way to step; None over nothing."""
        expected = self.span if self.validate == "post" else self.makespan
        return self.measured / expected if expected > 0 else None


def measure(
    schedule: Schedule,
    costs: Costs,
    validate: str,
    num_steps: int,
    keep: Callable[[MeasuredRun], None] | None = None,
) -> Measurement | None:
    """Run emulated steps on this rank after a few to warm up; rank 0 gets the figures of all.

    Args:
        schedule: what to run, for as many ranks as there are processes.
        costs: of its stages, in milliseconds.
        validate: ``post`` or ``sync``, as for ``Pipeline.optimizer``.
        num_steps: how many steps are measured.
        keep: takes these steps on rank 0, with the times of the device clock, beside the costs; all
            ranks give something, or none does.

    Raises:
        UsageError: the costs are for another number of stages, or ranks share copy engines.
        PipelineError: another rank has gone.
    """
    expected = simulate(schedule, costs)
    device = Device(MonotonicHost())
    timeout = _SILENCE_S + 2 * expected.makespan / 1e3
    num_recorded = 0 if keep is None else num_steps
    pipe = emulated_pipeline(
        schedule, costs, device, timeout=timeout, num_recorded_steps=num_recorded
    )
    marks = _run(pipe, device, validate, num_steps)
    if keep is not None and (run := pipe.measured_run(costs)) is not None:
        keep(run)
    gathered = pipe.transport.gather_object(marks)
    if gathered is None:
        return None
    wall_ms, own_us = np.moveaxis(np.array(gathered), 2, 0)
    return Measurement(
        schedule.name,
        validate,
        expected.span,
        expected.makespan,
        float(np.median(np.diff(wall_ms), axis=1).max()),
        float((own_us[:, -1] - own_us[:, 0]).sum() / (num_steps * schedule.num_ops)),
    )


def _run(
    pipe: Pipeline, device: Device, validate: str, num_steps: int
) -> Sequence[tuple[float, float]]:
    """Note wall time in ms and own CPU time in us between the steps that are measured."""
    optimizer = pipe.optimizer(torch.optim.AdamW, max_grad_norm=1e6, validate=validate)
    batch = emulated_batch(pipe.schedule.num_microbatches)
    marks = []
    device.waited(float("inf"))
    for number in range(_NUM_WARM_UP + num_steps):
        if number >= _NUM_WARM_UP:
            marks.append(_mark(device))
        pipe.step(batch, batch)
        pipe.recorder.put_device_times(device.ops)
        optimizer.step()
        device.ops.clear()
    marks.append(_mark(device))
    optimizer.synchronize()
    return marks


def _mark(device: Device) -> tuple[float, float]:
    return device.host.now_ms(), time.thread_time() * 1e6
