"""In which order do the ranks of a V run their ops if all of them advance round by round?

Rank r holds one stage on the way down, r, and one on the way up, 2p-1-r. After a warm-up every
rank runs one B and one F in each round and fills the waits before them with W. Which B and F it
takes follows from counts alone; times only decide where W goes. All ranks share one idle budget: a
rank may wait as long as the one that has waited longest, and where it would wait longer it lets a
W delay its B instead.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import Costs, Floats
from zerobubble.errors import ScheduleError
from zerobubble.ir import Codes
from zerobubble.jit import hot
from zerobubble.schedules.v_plan import (
    NEVER,
    VPlan,
    VProblem,
    arrival_of,
    empty_plan,
    fill,
    is_ready,
    make_room,
    next_weight,
    problem_of,
    run,
)

# To choose, to fill the wait with W and to run, at a few steps each.
_STEPS_OF_AN_OP = 12


class Rounds(NamedTuple):
    """What the construction gives.

    Attributes:
        orders: op codes of every rank, as a ``Schedule`` takes them.
        idle: how much longer the span is than the work of the busiest rank.
    """

    orders: tuple[Codes, ...]
    idle: float


def v_rounds(
    costs: Costs,
    num_microbatches: int,
    limits: ArrayLike,
    *,
    push_backward: bool = False,
    push_forward: bool = False,
    budget: float | None = None,
) -> Rounds:
    """Order the ops of every rank of a V under a memory limit for each rank.

    With equal stages and room for 2p stage activations the span is within a few thousandths of
    a lower bound, and mostly equal to it. The time to build it grows with the number of ops.

    Args:
        costs: of the 2p stages.
        num_microbatches: of the schedule.
        limits: activation memory of each rank, in the unit of the costs.
        push_backward: whether W may also delay B of the stage on the way up, to keep to the
            budget; that of the other stage it always may.
        push_forward: whether W may delay F of either stage.
        budget: idle time that each rank may spend; by default what the rank that has waited
            longest has spent. A rank with less work than others has as much more.

    Raises:
        ScheduleError: a limit is too small for one microbatch of both stages of the rank.
    """
    problem = problem_of(
        costs,
        num_microbatches,
        limits,
        push_backward=push_backward,
        push_forward=push_forward,
        budget_grows=budget is None,
    )
    plan = empty_plan(costs, num_microbatches, budget or 0.0)
    num_ranks, num_ops = len(plan.clock), len(plan.orders)
    work = _STEPS_OF_AN_OP * num_ops
    num_planned = plan_all(problem, plan, _warm_up_counts(problem), work=work)
    assert num_planned == num_ops, "an F that is let in leaves room for those it waits for"
    return Rounds(tuple(plan.orders.reshape(num_ranks, -1)), float(plan.idle.max()))


def _warm_up_counts(problem: VProblem) -> Codes:
    """Say how many F of each stage run before the first B of its rank.

    On the way up one more for every rank, and on the way down as many as there is memory for. No
    stage runs more than the one before it.
    """
    limits, num_microbatches = problem.limits, problem.num_microbatches
    num_ranks = len(limits)
    down, up = problem.changes[:num_ranks], problem.changes[num_ranks : 2 * num_ranks][::-1]
    num_up = np.minimum(num_microbatches, np.arange(num_ranks) + 1)
    while True:
        num_down = _num_fitting(down, limits - num_up * up, num_microbatches)
        too_many = (num_up > 1) & (num_down < num_up)
        if not too_many.any():
            break
        num_up -= too_many
    if (num_down < 1).any():
        rank = int(np.argmax(num_down < 1))
        raise ScheduleError(f"rank {rank} needs memory for one microbatch of both its stages")
    counts = np.minimum.accumulate(num_down), np.minimum.accumulate(num_up[::-1])
    return np.concatenate(counts).astype(np.int64)


def _num_fitting(size: Floats, room: Floats, num_microbatches: int) -> Floats:
    """Say how many microbatches of a size fit into each room; less than one if it is too small."""
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = np.floor(room / size)
    return np.where(size * num_microbatches <= room, num_microbatches, counts)


@hot
def plan_all(problem: VProblem, plan: VPlan, most: Codes) -> int:
    """Plan op after op until none is left or none can run; return how many were planned.

    ``most`` says for each stage how many F run before the first B of its rank.
    """
    num_ranks, num_stages = len(plan.clock), len(most)
    plan_warm_up(problem, plan, most)
    planned = True
    # B of the first stage for the last microbatch follows all other B.
    while planned and plan.counts[num_stages] < problem.num_microbatches:
        for rank in range(num_ranks):
            plan.chosen[rank] = next_backward(problem, plan, rank)
        planned = run_round(problem, plan, True)
        for rank in range(num_ranks):
            plan.chosen[rank] = next_forward(problem, plan, rank)
        planned = run_round(problem, plan, False) or planned
    num_planned = 0
    for rank in range(num_ranks):
        row = next_weight(problem, plan, rank)
        while row >= 0:
            run(problem, plan, rank, row, 0.0)
            row = next_weight(problem, plan, rank)
        num_planned += plan.positions[rank]
    return num_planned


@hot
def plan_warm_up(problem: VProblem, plan: VPlan, most: Codes) -> None:
    """Plan the forwards before the first B; microbatch 0 runs down and up without delay."""
    num_ranks, num_stages = len(plan.clock), len(most)
    for rank in range(num_ranks):
        run(problem, plan, rank, rank, arrival_of(problem, plan, rank))
    for rank in range(num_ranks - 1, -1, -1):
        up = num_stages - 1 - rank
        arrival = arrival_of(problem, plan, up)
        while end_of_next(problem, plan, most, rank) <= arrival + problem.tolerance:
            for above in range(rank + 1):
                run(problem, plan, above, above, arrival_of(problem, plan, above))
        run(problem, plan, rank, up, arrival)
    progress = True
    while progress:
        progress = False
        for rank in range(num_ranks - 1, -1, -1):
            for stage in (rank, num_stages - 1 - rank):
                if plan.counts[stage] < most[stage] and is_ready(problem, plan, stage):
                    run(problem, plan, rank, stage, arrival_of(problem, plan, stage))
                    progress = True


@hot
def end_of_next(problem: VProblem, plan: VPlan, most: Codes, last: int) -> float:
    """Say when one more microbatch would end on ranks 0 to ``last``; never if it must not run.

    All of these ranks have run the same number of F, none on the way up.
    """
    if plan.counts[last] >= most[last]:
        return NEVER
    end = 0.0
    for rank in range(last + 1):
        end = max(end + problem.travels[rank], plan.clock[rank]) + problem.durations[rank]
    return end


@hot
def run_round(problem: VProblem, plan: VPlan, is_backward: bool) -> bool:
    """Plan the chosen row of every rank, and say whether any could run.

    Stages on the way down come first, each half in the order in which its inputs are passed on.
    """
    num_ranks, num_stages = len(plan.clock), len(plan.counts) // 3
    progress = False
    for on_way_up in (False, True):
        for index in range(num_ranks):
            rank = index
            if is_backward != on_way_up:
                rank = num_ranks - 1 - index
            row = plan.chosen[rank]
            if row < 0 or (row % num_stages >= num_ranks) != on_way_up:
                continue
            if not is_ready(problem, plan, row):
                continue
            if not is_backward and not make_room(problem, plan, rank, row):
                continue
            arrival = arrival_of(problem, plan, row)
            fill(problem, plan, rank, arrival, problem.pushed[row])
            run(problem, plan, rank, row, arrival)
            progress = True
    return progress


@hot
def next_backward(problem: VProblem, plan: VPlan, rank: int) -> int:
    """Take turns; the stage on the way down waits until its input is from an earlier round.

    Gives a row, or -1 if no B is left or can be.
    """
    num_stages = len(plan.counts) // 3
    down, up = num_stages + rank, 2 * num_stages - 1 - rank
    up_can = plan.counts[up] < plan.counts[up - num_stages]
    if up_can and plan.counts[down] >= plan.counts[up]:
        return up
    if plan.counts[down] < problem.num_microbatches and is_ready(problem, plan, down):
        return down
    return up if up_can else -1


@hot
def next_forward(problem: VProblem, plan: VPlan, rank: int) -> int:
    """Take turns; the stage on the way up waits until its input is from an earlier round.

    Gives a row, or -1 if no F is left.
    """
    up = len(plan.counts) // 3 - 1 - rank
    down_left = plan.counts[rank] < problem.num_microbatches
    if down_left and plan.counts[up] >= plan.counts[rank]:
        return rank
    if plan.counts[up] < problem.num_microbatches and is_ready(problem, plan, up):
        return up
    return rank if down_left else -1
