"""What is laid over each other where a run was measured? Its plan and one of its steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Kind, Schedule
from zerobubble.measured import MeasuredRun, MeasuredStep
from zerobubble.simulate import Timeline
from zerobubble.view.html import Measured, Panel

_FROM_RUN = "plan: the expected times of the run"
_FROM_MEDIANS = "plan: medians of the measured ops"
_GIVEN = "plan: the costs that were given"


def overlay(
    run: MeasuredRun,
    step: MeasuredStep,
    costs: Costs | None = None,
    limits: Sequence[float] | None = None,
) -> Panel:
    """Lay a measured step over the plan of its run.

    The plan is simulated from the costs given, else those that the run expected, else the medians
    of the step itself, with transfers that take no time.

    Args:
        run: what the step is of.
        step: what was measured, in ms.
        costs: times in ms that take the place of those that the run expected.
        limits: memory limit of each rank.
    """
    note = _GIVEN if costs else _FROM_RUN if run.costs else _FROM_MEDIANS
    used = costs or run.costs or median_costs(step.timeline)
    timeline = Timeline(run.schedule, used, step.timeline.start, step.timeline.end)
    measured = Measured(step.number, timeline, arrivals(run.schedule, step))
    return Panel(run.schedule, used, limits, "ms", measured, note)


def arrivals(schedule: Schedule, step: MeasuredStep) -> Floats:
    """Tabulate by op code when the output of an op had travelled; nan where it did not."""
    table: Floats = np.full(schedule.num_codes, np.nan)
    for transfer in step.transfers:
        if transfer.sender != transfer.reader:
            table[schedule.code(transfer.op)] = transfer.arrived
    return table


def median_costs(timeline: Timeline) -> Costs:
    """Take the medians of each stage's ops as their times; W takes nothing where only BW ran."""
    schedule, sizes = timeline.schedule, timeline.costs
    codes, _ = schedule.flat()
    kinds, stages, _ = schedule.fields(codes)
    took = np.concatenate(timeline.end) - np.concatenate(timeline.start)
    table: Floats = np.zeros((len(Kind), schedule.num_stages))
    for kind in Kind:
        for stage in range(schedule.num_stages):
            mine = took[(kinds == kind) & (stages == stage)]
            table[kind, stage] = float(np.median(mine)) if len(mine) else np.nan
    together = np.nan_to_num(table[Kind.BW])
    backward = np.where(np.isnan(table[Kind.B]), together, table[Kind.B])
    forward, weight = np.nan_to_num(table[Kind.F]), np.nan_to_num(table[Kind.W])
    none = np.zeros(schedule.num_stages)
    return replace(
        sizes,
        forward=forward,
        backward_input=backward,
        backward_weight=weight,
        transfer=none,
        offload=np.nan_to_num(table[Kind.O]),
        load=np.nan_to_num(table[Kind.L]),
        recompute=np.where(np.isnan(table[Kind.R]), forward, table[Kind.R]),
    )
