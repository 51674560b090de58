"""What does a problem look like in small? Copies on which rules are tuned at little cost."""

from collections.abc import Callable

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement, looped, wave
from zerobubble.search.limits import smallest_memory
from zerobubble.search.problem import Problem

# Ranks of the copies; each has three microbatches a rank, enough to show its rhythm.
_SIZES = (8, 16)
_MICROBATCHES_A_RANK = 3
# A problem with more than this many microbatches a rank is first solved with fewer.
_LONG = 4


def ladder(problem: Problem) -> list[Problem]:
    """Give smaller copies of a problem, smallest first, and the problem itself at the end."""
    copies = []
    shape = _shape(problem.placement)
    if shape is not None:
        for num_ranks in _SIZES:
            if num_ranks < problem.placement.num_ranks:
                place = shape(
                    num_ranks, problem.placement.num_stages // problem.placement.num_ranks
                )
                copies.append(_copy(problem, place))
    least = _MICROBATCHES_A_RANK * problem.placement.num_ranks
    # Any period of one to four microbatches divides those that splicing adds.
    few = least + (problem.num_microbatches - least) % 12
    if max(few, _LONG * problem.placement.num_ranks) < problem.num_microbatches:
        copies.append(shorter(problem, few))
    return [*copies, problem]


def shorter(problem: Problem, num_microbatches: int) -> Problem:
    """Give the same problem for another number of microbatches."""
    return Problem(
        problem.costs, problem.placement, num_microbatches, problem.limits, problem.objective
    )


def with_limits(problem: Problem, limits: Floats) -> Problem:
    """Give the same problem with other memory limits."""
    return Problem(
        problem.costs, problem.placement, problem.num_microbatches, limits, problem.objective
    )


def _shape(placement: Placement) -> Callable[[int, int], Placement] | None:
    """Find out by which function a placement is made for any number of ranks."""
    per_rank, rest = divmod(placement.num_stages, placement.num_ranks)
    if rest == 0:
        for shape in (wave, looped):
            if shape(placement.num_ranks, per_rank) == placement:
                return shape
    return None


def _copy(problem: Problem, place: Placement) -> Problem:
    """Take every so many stages of each pass, and limits in proportion to the ranks."""
    many, few = problem.placement.num_ranks, place.num_ranks
    spread = np.round(np.arange(few) * (many - 1) / max(1, few - 1)).astype(np.int64)
    stages = (np.arange(place.num_stages // few)[:, None] * many + spread).reshape(-1)
    costs = Costs(
        *(
            column[stages]
            for column in (
                problem.costs.forward,
                problem.costs.backward_input,
                problem.costs.backward_weight,
                problem.costs.transfer,
                problem.costs.activation,
                problem.costs.activation_kept,
            )
        )
    )
    limits: Floats = np.asarray(problem.limits)[spread] * few / many
    limits = np.maximum(limits, smallest_memory(costs, place))
    count = min(problem.num_microbatches, _MICROBATCHES_A_RANK * few)
    return Problem(costs, place, count, limits, problem.objective)
