"""In which order do the ranks of a V run their ops if all of them advance round by round?

Rank r holds one stage on the way down, r, and one on the way up, 2p-1-r. After a warm-up every
rank runs one B and one F in each round and fills the waits before them with W. Which B and F it
takes follows from counts alone; times only decide where W goes. All ranks share one idle budget: a
rank may wait as long as the one that has waited longest, and where it would wait longer it lets a
W delay its B instead.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError
from zerobubble.ir import Kind, Op
from zerobubble.schedules.v_plan import VPlan


class Rounds(NamedTuple):
    """The ops of every rank, and how much longer the span is than the work of the busiest."""

    orders: list[list[Op]]
    idle: float


def v_rounds(
    costs: Costs,
    num_microbatches: int,
    limits: Sequence[float],
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
    plan = VPlan(costs, num_microbatches, limits, budget)
    _warm_up(plan)
    while any(plan.left(Kind.B, stage) for stage in range(plan.num_stages)):
        backward = _run_round(plan, Kind.B, _next_backward, (True, push_backward))
        forward = _run_round(plan, Kind.F, _next_forward, (push_forward, push_forward))
        assert backward or forward, "an F that is let in leaves room for those it waits for"
    for rank in plan.ranks:
        while plan.run_weight(rank):
            pass
    return Rounds(plan.orders, max(plan.idle))


def _warm_up(plan: VPlan) -> None:
    """Plan the forwards before the first B; microbatch 0 runs down and up without delay."""
    most_down, most_up = _warm_up_counts(plan)
    for rank in plan.ranks:
        plan.run_if_planned(rank)
    for rank in reversed(plan.ranks):
        down, up = plan.stages(rank)
        arrival = plan.arrival(Kind.F, up)
        assert arrival is not None, "the stage before has just been planned"
        while _end_of_next(plan, down, most_down) <= arrival + plan.tolerance:
            index = plan.count(Kind.F, down)
            for stage in range(down + 1):
                if plan.count(Kind.F, stage) == index:
                    plan.run_if_planned(stage)
        plan.run(Kind.F, up, arrival)
    progress = True
    while progress:
        progress = False
        for rank in reversed(plan.ranks):
            down, up = plan.stages(rank)
            for stage, most in ((down, most_down[rank]), (up, most_up[rank])):
                if plan.count(Kind.F, stage) < most:
                    progress |= plan.run_if_planned(stage)


def _warm_up_counts(plan: VPlan) -> tuple[list[int], list[int]]:
    """Say how many F each rank runs before its first B, on the way down and on the way up.

    One more on the way up for every rank, and as many on the way down as there is memory for.
    """
    downs, ups = [], []
    for rank in plan.ranks:
        down, up = plan.stages(rank)
        num_up = min(plan.num_microbatches, rank + 1)
        while num_up > 1 and plan.num_fitting(down, num_up * plan.size[up]) < num_up:
            num_up -= 1
        num_down = plan.num_fitting(down, num_up * plan.size[up])
        if num_down < 1:
            raise ScheduleError(f"rank {rank} needs memory for one microbatch of both its stages")
        downs.append(num_down)
        ups.append(num_up)
    return list(accumulate(downs, min)), list(accumulate(reversed(ups), min))[::-1]


def _end_of_next(plan: VPlan, last: int, most: Sequence[int]) -> float:
    """Say when the next F of a stage on the way down would end; infinite if it must not run."""
    index, end = plan.count(Kind.F, last), 0.0
    for stage in range(last + 1):
        if stage:
            end += plan.transfer[stage - 1]
        if plan.count(Kind.F, stage) > index:
            end = plan.ends[Kind.F][stage][index]
        elif plan.count(Kind.F, stage) == index < most[stage]:
            end = max(end, plan.clock[stage]) + plan.durations[Kind.F][stage]
        else:
            return math.inf
    return end


def _run_round(
    plan: VPlan, kind: Kind, choose: Callable[[VPlan, int], int | None], push: tuple[bool, bool]
) -> bool:
    """Plan one F or one B of every rank, and say whether any could run.

    Args:
        plan: what has been planned.
        kind: F or B.
        choose: gives the stage whose turn it is on a rank.
        push: whether W may delay the op on a stage of the way down, and on one of the way up.
    """
    chosen = [choose(plan, rank) for rank in plan.ranks]
    along = chosen if kind == Kind.F else chosen[::-1]
    down = [stage for stage in along if stage is not None and stage < len(chosen)]
    up = [stage for stage in along[::-1] if stage is not None and stage >= len(chosen)]
    progress = False
    for stage in [*down, *up]:
        arrival = plan.arrival(kind, stage)
        if arrival is None or (kind == Kind.F and not plan.make_room(stage)):
            continue
        plan.fill(plan.rank_of(stage), arrival, push[stage >= len(chosen)])
        plan.run(kind, stage, arrival)
        progress = True
    return progress


def _next_backward(plan: VPlan, rank: int) -> int | None:
    """Take turns; the stage on the way down waits until its input is from an earlier round."""
    down, up = plan.stages(rank)
    up_can = plan.count(Kind.B, up) < plan.count(Kind.F, up)
    if up_can and plan.count(Kind.B, down) >= plan.count(Kind.B, up):
        return up
    if plan.left(Kind.B, down) and plan.arrival(Kind.B, down) is not None:
        return down
    return up if up_can else None


def _next_forward(plan: VPlan, rank: int) -> int | None:
    """Take turns; the stage on the way up waits until its input is from an earlier round."""
    down, up = plan.stages(rank)
    if plan.left(Kind.F, down) and plan.count(Kind.F, up) >= plan.count(Kind.F, down):
        return down
    if plan.left(Kind.F, up) and plan.arrival(Kind.F, up) is not None:
        return up
    return down if plan.left(Kind.F, down) else None
