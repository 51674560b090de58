"""Which schedule is the best within a memory limit, and how good can one be at all?

What does the work is loaded with the first search, so that importing the package stays quick.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.ir import Placement
from zerobubble.search import auto as auto  # registers zb-auto
from zerobubble.search.placements import CostsOrFunction, costs_of_placements

if TYPE_CHECKING:
    from zerobubble.search.bounds import Bound, lower_bound, lower_bounds
    from zerobubble.search.engine import SearchResult
    from zerobubble.search.problem import Objective
    from zerobubble.search.relief import Offload, Recompute
    from zerobubble.search.sweep import Frontier, frontier

__all__ = [
    "Bound",
    "Frontier",
    "SearchResult",
    "frontier",
    "lower_bound",
    "lower_bounds",
    "search",
]

_MODULES = {"SearchResult": "engine", "Frontier": "sweep", "frontier": "sweep"}


def search(
    costs: CostsOrFunction,
    num_ranks: int,
    num_microbatches: int,
    memory: ArrayLike | None = None,
    placement: Placement | str | Sequence[int] | None = None,
    objective: "Objective" = "span",
    effort: str = "default",
    offload: "Offload" = "off",
    recompute: "Recompute" = "off",
) -> "SearchResult":
    """Find the best schedule for measured costs within a memory limit, with a certificate.

    Every registered schedule that fits is a candidate, so the result is never worse than one of
    them. The same input and effort give the same schedule, with numba and without.

    Args:
        costs: of every stage; their number over ``num_ranks`` is the number of stages a rank. Or
            a function that gives the costs for a placement, such as ``Costs.of_ranks``.
        num_ranks: p.
        num_microbatches: m.
        memory: limit for every rank, or one for each, in the unit of ``costs.activation``; by
            default there is none.
        placement: ``linear``, ``v``, ``looped:2``, ``wave:4``, any ``Placement`` or a list with
            the rank of each stage; by default the regular ones of so many stages are tried, or,
            with a function, all of these.
        objective: ``span`` where steps follow each other without a barrier, else ``makespan``.
        effort: ``quick``, ``default`` or ``thorough``; the last also looks for patterns that repeat
            (modulo scheduling), where OR-Tools is installed.
        offload: ``auto`` to offload the activations of those stages where that is best, ``all`` to
            offload those of every stage; ``costs`` give the times of the copies.
        recompute: ``light`` for a run in which B computes norms, activation functions and dropout
            again, ``full`` to run every stage again, ``auto`` for what is best, stage by stage.

    Raises:
        UsageError: the numbers do not fit each other, or no schedule exists within the limit.

    >>> from zerobubble.costs import Costs
    >>> costs = Costs.uniform(4, f=1, b=1, w=1)
    >>> found = search(costs, num_ranks=4, num_microbatches=8, memory=4)
    >>> found.timeline.span, found.bound, found.binding
    (27.0, 27.0, 'rank 0, warm-up, limited by memory')
    """
    from zerobubble.search.effort import effort_named
    from zerobubble.search.engine import search_all
    from zerobubble.search.relief import Relief
    from zerobubble.search.relief.searching import search_relieved

    table = costs_of_placements(costs, num_ranks, placement)
    limits = np.inf if memory is None else memory
    asked = (table, num_microbatches, limits, objective, effort_named(effort))
    relief = Relief(offload, recompute)
    return search_all(*asked) if relief == Relief() else search_relieved(*asked, relief)


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = _MODULES.get(name, "bounds")
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
