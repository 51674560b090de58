"""Do emulated ranks that send each other their times agree with the simulation?"""

import random

import numpy as np
import pytest
import torch

from tests.dist.harness import launch, values
from tests.runtime.test_emulate import StandingHost
from tests.strategies import random_schedule, with_random_copies
from zerobubble import Costs, build, search, simulate
from zerobubble.ir import Placement
from zerobubble.runtime.emulate import Device, emulated_batch
from zerobubble.runtime.emulated_copies import emulated_pipeline
from zerobubble.runtime.emulated_run import measure

PLACEMENTS = {1: [(0, 0)], 2: [(0, 1), (0, 1, 0), (1, 0, 0, 1)], 3: [(0, 1, 2), (2, 0, 1, 1)]}
NAMED = ("1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "interleaved:v=2", "dualpipe-v")


def cases(num_ranks):
    """List named and random schedules, with fewer microbatches than ranks too."""
    schedules = [build(name, num_ranks, 2 * num_ranks) for name in NAMED]
    schedules += [build("zb-h1", num_ranks, m) for m in (1, 2)]
    for seed, stages in enumerate(PLACEMENTS[num_ranks] * 3):
        chosen = random.Random(seed)
        schedules.append(random_schedule(chosen, Placement(stages), 1 + seed % 4))
    schedules += [with_random_copies(random.Random(i), s) for i, s in enumerate(schedules)]
    return [(schedule, some_costs(schedule.num_stages, i)) for i, schedule in enumerate(schedules)]


def some_costs(num_stages, seed):
    """Draw times and links in halves, some of them zero."""
    times = np.random.default_rng(seed).integers(0, 5, (7, num_stages)) / 2
    offload, load, recompute = times[4:]
    ones = np.ones(num_stages)
    return Costs(*times[:4], ones, ones, offload, load, recompute)


def device_times(rank, of_cases):
    found = []
    for schedule, costs in of_cases:
        device = Device(StandingHost())
        pipe = emulated_pipeline(schedule, costs, device)
        batch = emulated_batch(schedule.num_microbatches)
        pipe.step(batch, batch)
        found.append(device.ops)
    return found


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_times_on_the_device_clock_are_the_simulated_ones(num_ranks):
    of_cases = cases(num_ranks)
    of_ranks = values(launch(device_times, num_ranks, of_cases))
    for number, (schedule, costs) in enumerate(of_cases):
        expected = simulate(schedule, costs)
        for rank, found in enumerate(of_ranks):
            times = np.column_stack((expected.start[rank], expected.end[rank]))
            np.testing.assert_array_equal(found[number], times, err_msg=f"{schedule} rank {rank}")


def searched(num_ranks):
    """Search with offload in a quarter of the memory of 1F1B, with times in quarters."""

    def costs(placement):
        of_ranks = Costs.of_ranks(placement, f=8, b=8, w=4, transfer=0.25)
        return of_ranks.with_bandwidth(1 / 16)

    memory, num_microbatches = num_ranks / 4, 2 * num_ranks
    options = {"effort": "quick", "offload": "auto"}
    found = search(costs, num_ranks, num_microbatches, memory, "looped:4", **options)
    assert found.offloaded_stages
    assert found.timeline.peak_memory <= memory
    return found.schedule, found.timeline.costs


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_searched_schedule_with_offload_takes_the_simulated_times(num_ranks):
    schedule, costs = searched(num_ranks)
    expected = simulate(schedule, costs)
    for rank, (found,) in enumerate(
        values(launch(device_times, num_ranks, [(schedule, costs)]))
    ):
        times = np.column_stack((expected.start[rank], expected.end[rank]))
        np.testing.assert_array_equal(found, times, err_msg=f"rank {rank}")


def measured(rank, schedule, costs):
    torch.set_num_threads(1)
    return [measure(schedule, costs, validate, 2) for validate in ("post", "sync")]


def test_rank_0_gets_a_measurement_that_is_no_shorter_than_the_work():
    schedule = build("zb-h1", 2, 4)
    costs = Costs.uniform(2, f=2, b=2, w=2, transfer=0.5)
    rows, nothing = values(launch(measured, 2, schedule, costs))
    assert nothing == [None, None]
    for row, validate in zip(rows, ("post", "sync"), strict=True):
        assert (row.schedule, row.validate) == ("zb-h1", validate)
        assert (row.span, row.makespan) == (28, 28)
        assert row.measured > 12
        assert row.host_us_per_op > 0
        assert row.ratio == row.measured / 28


def recorded(rank, of_cases):
    runs = []
    for schedule, costs in of_cases:
        device = Device(StandingHost())
        pipe = emulated_pipeline(schedule, costs, device)
        batch = emulated_batch(schedule.num_microbatches)
        pipe.step(batch, batch)
        pipe.recorder.put_device_times(device.ops)
        runs.append(pipe.measured_run(costs))
    return runs


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_recorded_run_lies_on_what_its_costs_promise(num_ranks):
    schedules = [build(name, num_ranks, 2 * num_ranks) for name in ("1f1b", "zb-h1", "zb-v")]
    of_cases = [(s, Costs.of_ranks(s.placement, 20, 19, 9, 1.5)) for s in schedules]
    runs, *nothing = values(launch(recorded, num_ranks, of_cases))
    assert nothing == [[None] * len(schedules)] * (num_ranks - 1)
    for run, (schedule, costs) in zip(runs, of_cases, strict=True):
        (step,) = run.steps
        planned, measured = simulate(schedule, run.costs), step.timeline
        assert run.costs.to_dict() == costs.to_dict()
        assert measured.span == pytest.approx(planned.span, rel=0.001)
        for rank in range(num_ranks):
            np.testing.assert_allclose(measured.start[rank], planned.start[rank], atol=1e-6)
            np.testing.assert_allclose(measured.end[rank], planned.end[rank], atol=1e-6)
            assert (step.host_start[rank] != measured.start[rank]).any()
        durations = {transfer.arrived - transfer.sent for transfer in step.transfers}
        assert min(durations) == pytest.approx(1.5, abs=1e-6)
        assert {transfer.num_bytes for transfer in step.transfers} == {16}
