"""Do copies run beside the compute of a CUDA device, and does a step with them take no longer?

Needs a device; only what judges its intervals is tested without one.
"""

import statistics
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from zerobubble import Costs, Pipeline, Schedule
from zerobubble.copies import with_copies
from zerobubble.ir import BW, F, Kind, linear

NUM_MICROBATCHES, NUM_AHEAD = 24, 12
LARGEST_RATIO = 0.8

on_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Size(NamedTuple):
    """Of layers without an activation function, and of a microbatch."""

    width: int
    num_tokens: int
    num_layers: int = 4


# 32 MiB for each layer; the wider a layer is, the longer it takes to compute what is copied.
SIZES = [Size(width, 2**23 // width) for width in (1024, 2048, 4096, 8192)]


# --- the schedule --------------------------------------------------------------------------------


def plain():
    """Run forwards ahead, so that there is time to copy all of a microbatch both ways."""
    forwards = [F(0, i) for i in range(NUM_MICROBATCHES)]
    ops = forwards[:NUM_AHEAD]
    for i in range(NUM_MICROBATCHES):
        ops += [BW(0, i), *forwards[NUM_AHEAD + i : NUM_AHEAD + i + 1]]
    return Schedule.from_ops("ahead", linear(1), NUM_MICROBATCHES, [ops])


def offloaded():
    """Move what copies at the largest ratio have time for; waits of slower ones would show."""
    return with_copies(plain(), Costs.uniform(1).with_bandwidth(1 / (3 * LARGEST_RATIO)))


def test_all_microbatches_move():
    assert offloaded().has(Kind.O).all()


# --- intervals -----------------------------------------------------------------------------------


def share_inside(intervals, busy):
    """Give the share of the time of some intervals that lies in the union of others."""
    points = np.unique(np.array([*intervals, *busy], dtype=np.float64))
    middles = (points[1:] + points[:-1]) / 2
    times, counts = np.diff(points), []
    for of_set in (intervals, busy):
        starts, ends = np.sort(np.array(of_set, dtype=np.float64), axis=0).T
        counts.append(
            np.searchsorted(starts, middles, "right") - np.searchsorted(np.sort(ends), middles)
        )
    inside, is_busy = counts
    return float((times * inside)[is_busy > 0].sum() / (times * inside).sum())


@pytest.mark.parametrize(
    ("intervals", "busy", "share"),
    [
        ([(0, 2)], [(0, 2)], 1),
        ([(0, 2)], [(1, 2), (1, 3)], 0.5),
        ([(0, 1), (0, 4)], [(4, 5), (0, 1)], 0.4),
        ([(2, 3)], [(0, 1), (3, 9)], 0),
        ([(2, 3), (6, 7)], [(0, 9), (1, 2)], 1),
    ],
)
def test_share_of_the_time_that_others_are_busy(intervals, busy, share):
    assert share_inside(intervals, busy) == pytest.approx(share)


# --- the device ----------------------------------------------------------------------------------


class Run:
    """A pipeline of linear layers on one rank."""

    def __init__(self, schedule, device, size):
        layers = [
            lambda: nn.Linear(size.width, size.width, bias=False) for _ in range(size.num_layers)
        ]
        self.pipe = Pipeline(layers, schedule, lambda y, _: y.square().mean(), device=device)
        self.batch = torch.ones(NUM_MICROBATCHES * size.num_tokens, size.width, device=device)

    def step(self):
        self.pipe.step(self.batch, self.batch)

    def copies_and_compute(self):
        """Give the intervals of all copies and of all other ops of the last step, in ms."""
        (timeline,) = self.pipe.timelines()
        kinds, _, _ = timeline.schedule.fields(timeline.schedule.orders[0])
        is_copy = np.isin(kinds, (Kind.O, Kind.L))
        intervals = np.column_stack((timeline.start[0], timeline.end[0]))
        return intervals[is_copy], intervals[~is_copy]

    def ratio(self):
        """Give the time of a microbatch's slower copy over that of its compute."""
        copies, compute = self.copies_and_compute()
        copy_ms = np.median(np.diff(copies, axis=1))
        return copy_ms / (np.diff(compute, axis=1).sum() / NUM_MICROBATCHES)

    def event_ms(self):
        """Time a step between two events in the compute stream."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        self.step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def warmed_up(schedule, size):
    run = Run(schedule, "cuda", size)
    for _ in range(3):  # pinned memory is taken in the first step
        run.step()
    torch.cuda.synchronize()
    return run


@pytest.fixture(scope="module")
def runs():
    """Give a run with offload and one without, with layers that hide their copies just so."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    for size in SIZES:
        with_offload = warmed_up(offloaded(), size)
        ratio = with_offload.ratio()
        if ratio <= LARGEST_RATIO:
            break
        del with_offload
    else:
        pytest.skip(f"copies take {ratio:.2f} of the compute on this device")
    yield with_offload, warmed_up(plain(), size)
    torch.backends.cuda.matmul.allow_tf32 = allowed


def kernels_and_copies(profiler):
    """Give the intervals of kernels and of copies between device and pinned memory, in us."""
    kernels, copies = [], []
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or event.is_user_annotation:
            continue
        interval = event.time_range.start, event.time_range.end
        if event.name.startswith(("Memcpy DtoH", "Memcpy HtoD")):
            copies.append((interval, event.name))
        elif not event.name.startswith(("Memcpy", "Memset")):
            kernels.append(interval)
    return kernels, copies


class TestOnCuda:
    pytestmark = on_cuda

    def test_the_profiler_sees_copies_while_kernels_run(self, runs):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            runs[0].step()
            torch.cuda.synchronize()
        kernels, copies = kernels_and_copies(profiler)
        large = [(interval, name) for interval, name in copies if np.diff(interval) > 50]
        for direction in ("DtoH", "HtoD"):
            of_direction = [name for _, name in large if direction in name]
            assert len(of_direction) >= NUM_MICROBATCHES, direction
            assert all("Pinned" in name for name in of_direction)
        assert share_inside([interval for interval, _ in large], kernels) >= 0.9

    def test_recorded_copies_lie_beside_the_ops(self, runs):
        runs[0].step()
        copies, compute = runs[0].copies_and_compute()
        assert len(copies) == 2 * NUM_MICROBATCHES
        assert share_inside(copies, compute) >= 0.9

    def test_a_step_takes_at_most_5_percent_longer(self, runs):
        times = [[run.event_ms() for run in runs] for _ in range(11)]
        with_offload, without = map(statistics.median, zip(*times, strict=True))
        assert with_offload <= 1.05 * without

    def test_less_memory_is_held(self, runs):
        peaks = []
        for run in runs:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run.step()
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated() - before)
        assert peaks[0] < peaks[1]
