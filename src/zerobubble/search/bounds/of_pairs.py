"""How short can the span of one rank be at best, as it waits for the work of another?

Both bounds add up times along one way: from the first op of rank d to that of rank e, through
the work of e, and with the last microbatch back to d, whose last W ends there. A microbatch
alone takes the least time for the ways between. Each function gives a table of values for (d, e).
"""

import numpy as np

from zerobubble.costs import Floats
from zerobubble.search.bounds.fitting import (
    wait_before_first_backward,
    wait_before_last_forward,
    weights_before_last_forward,
    work_after_last_forward,
)
from zerobubble.search.problem import Problem, Share


def path(problem: Problem) -> Floats:
    """Bound by all F and B of rank e, whose first stage is no shallower than that of d.

    From its first op, e does all its F and B, waits before its first B, and does each W for
    which it lacks memory. The last B of e is on its first stage; from there the B of the stages
    before lead to the first stage of d.
    """

    def from_start_to_last_backward(e: Share) -> float:
        work = e.num_microbatches * float((e.forward + e.backward).sum())
        return work + wait_before_first_backward(e) + weights_before_last_forward(e)

    leave = [
        e.start + from_start_to_last_backward(e) - float(e.earliest_backward[0] + e.backward[0])
        for e in problem.shares
    ]
    return np.where(_is_no_deeper(problem), _way_there_and_back(problem, leave), 0.0)


def turn(problem: Problem) -> Floats:
    """Bound by the work of rank e until its last F, from where the last microbatch turns back.

    Until the end of its last F, rank e has done all its work but what memory lets it do later,
    and has waited before. From there the last microbatch goes down to the last stage and up to
    the first stage of d. With it ZB-V (arXiv 2405.15362) is optimal within p microbatches.

    The span of d needs its first op to be no later than that of e by the way between, which
    holds if the first stage of d is no deeper; the makespan does not.
    """

    def from_start_to_last_forward(e: Share) -> float:
        return e.load - work_after_last_forward(e) + wait_before_last_forward(e)

    leave = [
        e.start + from_start_to_last_forward(e) - float(e.earliest_forward[-1] + e.forward[-1])
        for e in problem.shares
    ]
    values = _way_there_and_back(problem, leave)
    if problem.objective == "makespan":
        return values
    return np.where(_is_no_deeper(problem), values, 0.0)


def _way_there_and_back(problem: Problem, leave: list[float]) -> Floats:
    """Add the way to the last W of rank d to ``leave`` of rank e, counted from the first op of d.

    ``leave`` is when e lets the last microbatch go, less when a microbatch alone would be there.
    For the makespan all counts from the start of the pipeline.
    """
    way: Floats = np.array(
        [float(d.earliest_backward[0] + d.backward[0] + d.weight[0]) for d in problem.shares]
    )
    if problem.objective == "span":
        way -= [d.start for d in problem.shares]
    table: Floats = np.add.outer(way, np.array(leave))
    return table


def _is_no_deeper(problem: Problem) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """Tell for (d, e) whether the first stage of d is no deeper than that of e."""
    holders = np.asarray(problem.placement.stage_to_rank)
    _, first = np.unique(holders, return_index=True)
    return first[:, None] <= first[None, :]
