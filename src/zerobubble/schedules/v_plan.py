"""What has been planned so far on the ranks of a V, and when does the next op start?

A row is one kind of op of one stage, ``row = kind * num_stages + stage``; its microbatches are
planned in order, and ``row * num_microbatches + microbatch`` is the op code.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.ir import Codes, Kind
from zerobubble.jit import hot

NEVER = np.inf


class VProblem(NamedTuple):
    """What is to be planned, by row unless said otherwise; rows of F come first, then B, then W.

    Attributes:
        sources: row whose op of the same microbatch gives the input; -1 if none is waited for.
        travels: time in which that input travels.
        durations: time of the op.
        changes: what the op adds to the memory of its rank.
        pushed: 1 if W may delay the op to keep to the budget; only read for F and B.
        limits: activation memory of each rank, tolerance included.
        num_microbatches: m.
        tolerance: times that differ by less are equal.
        budget_grows: whether the budget is the largest idle time of any rank.
    """

    sources: Codes
    travels: Floats
    durations: Floats
    changes: Floats
    pushed: Codes
    limits: Floats
    num_microbatches: int
    tolerance: float
    budget_grows: bool


class VPlan(NamedTuple):
    """What has been planned so far, by rank unless said otherwise.

    Attributes:
        counts: number of ops of each row.
        ends: end of each op by code.
        orders: codes of rank 0 in the order it runs them, then of rank 1, ...
        positions: number of ops.
        clock: end of the last op.
        memory: activation memory held.
        idle: time waited, less the time to spare of a rank with less work than others.
        budget: one number, the idle time that each rank may spend.
        chosen: row whose turn it is; -1 for none.
    """

    counts: Codes
    ends: Floats
    orders: Codes
    positions: Codes
    clock: Floats
    memory: Floats
    idle: Floats
    budget: Floats
    chosen: Codes


def problem_of(
    costs: Costs,
    num_microbatches: int,
    limits: ArrayLike,
    *,
    push_backward: bool,
    push_forward: bool,
    budget_grows: bool,
) -> VProblem:
    """Give the arrays of a problem; arguments as for ``zerobubble.schedules.v_rounds.v_rounds``."""
    num_stages = costs.num_stages
    num_ranks, stages = num_stages // 2, np.arange(num_stages)
    hops = costs.transfer[:-1].copy()
    hops[num_ranks - 1] = 0.0
    # B of a stage reads from B of the next stage, that of the last stage from its own F.
    backward = np.append(num_stages + stages[1:], num_stages - 1)
    durations = costs.durations()
    pushed = np.zeros((3, num_stages), dtype=np.int64)
    pushed[Kind.F] = push_forward
    pushed[Kind.B] = np.where(stages < num_ranks, True, push_backward)
    return VProblem(
        sources=np.concatenate([stages - 1, backward, num_stages + stages]),
        travels=np.concatenate([[0.0], hops, hops, [0.0], np.zeros(num_stages)]),
        durations=durations[:3].reshape(-1),
        changes=costs.memory_changes()[:3].reshape(-1),
        pushed=pushed.reshape(-1),
        limits=np.asarray(limits, dtype=np.float64) * (1 + TOLERANCE),
        num_microbatches=num_microbatches,
        tolerance=TOLERANCE * float(durations.max()),
        budget_grows=budget_grows,
    )


def empty_plan(costs: Costs, num_microbatches: int, budget: float) -> VPlan:
    """Give the plan in which nothing has been planned yet."""
    num_stages = costs.num_stages
    num_ranks, num_rows = num_stages // 2, 3 * num_stages
    stage_work = costs.durations()[:3]
    down, up = stage_work[:, :num_ranks], stage_work[:, : num_ranks - 1 : -1]
    work = num_microbatches * np.stack([down, up], axis=1).reshape(6, num_ranks).sum(axis=0)
    return VPlan(
        counts=np.zeros(num_rows, np.int64),
        ends=np.zeros(num_rows * num_microbatches),
        orders=np.zeros(num_rows * num_microbatches, np.int64),
        positions=np.zeros(num_ranks, np.int64),
        clock=np.zeros(num_ranks),
        memory=np.zeros(num_ranks),
        idle=work - work.max(),
        budget=np.array([budget]),
        chosen=np.zeros(num_ranks, np.int64),
    )


@hot
def is_ready(problem: VProblem, plan: VPlan, row: int) -> bool:
    """Say whether the input of the next op of a row is planned."""
    source = problem.sources[row]
    return bool(source < 0 or plan.counts[row] < plan.counts[source])


@hot
def arrival_of(problem: VProblem, plan: VPlan, row: int) -> float:
    """Say when the input of the next op of a row is there; never if it is not planned yet."""
    source = problem.sources[row]
    if source < 0:
        return 0.0
    i = plan.counts[row]
    if i >= plan.counts[source]:
        return NEVER
    return float(plan.ends[source * problem.num_microbatches + i] + problem.travels[row])


@hot
def run(problem: VProblem, plan: VPlan, rank: int, row: int, arrival: float) -> None:
    """Plan the next op of a row."""
    start, position = max(arrival, plan.clock[rank]), plan.positions[rank]
    if position > 0:
        plan.idle[rank] += start - plan.clock[rank]
        if problem.budget_grows:
            plan.budget[0] = max(plan.budget[0], plan.idle[rank])
    code = row * problem.num_microbatches + plan.counts[row]
    plan.orders[6 * problem.num_microbatches * rank + position] = code
    plan.ends[code] = plan.clock[rank] = start + problem.durations[row]
    plan.positions[rank] = position + 1
    plan.counts[row] += 1
    plan.memory[rank] += problem.changes[row]


@hot
def next_weight(problem: VProblem, plan: VPlan, rank: int) -> int:
    """Give the row whose W has waited for most microbatches; -1 if no W is pending."""
    down, up = len(plan.counts) // 3 * 2 + rank, len(plan.counts) - 1 - rank
    down_can = plan.counts[down] < plan.counts[problem.sources[down]]
    up_can = plan.counts[up] < plan.counts[problem.sources[up]]
    if up_can and (not down_can or plan.counts[up] <= plan.counts[down]):
        return up
    return down if down_can else -1


@hot
def fill(problem: VProblem, plan: VPlan, rank: int, arrival: float, push: int) -> None:
    """Plan every W that ends before ``arrival``, and one more if the budget demands it."""
    wait = arrival - plan.clock[rank]
    while wait > problem.tolerance:
        row = next_weight(problem, plan, rank)
        if row < 0:
            return
        fits = problem.durations[row] <= wait + problem.tolerance
        if not fits and not (push and wait > plan.budget[0] - plan.idle[rank]):
            return
        run(problem, plan, rank, row, 0.0)
        wait = arrival - plan.clock[rank]


@hot
def make_room(problem: VProblem, plan: VPlan, rank: int, row: int) -> bool:
    """Plan W until an F fits, or say that it must not run now.

    An F on the way down must leave room for those on the way up, or it could block them.
    """
    up = len(plan.counts) // 3 - 1 - rank
    size, limit = problem.changes[row], problem.limits[rank]
    if row == rank and plan.counts[up] < problem.num_microbatches:
        between = plan.counts[row] + 1 - plan.counts[up]
        if between * size + problem.changes[up] > limit:
            return False
    while plan.memory[rank] + size > limit:
        weight = next_weight(problem, plan, rank)
        if weight < 0:
            return False
        run(problem, plan, rank, weight, 0.0)
    return True
