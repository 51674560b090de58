"""Which placements are tried, and what do the stages cost under each of them?"""

from collections.abc import Callable, Sequence
from operator import index

import numpy as np

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Placement, looped, placement_named, wave
from zerobubble.search.problem import MOST_RANKS

# What is tried where the costs leave the number of stages open.
PLACEMENTS = ("linear", "v", "looped:2", "wave:4")

CostsOrFunction = Costs | Callable[[Placement], Costs]


def costs_of_placements(
    costs: CostsOrFunction,
    num_ranks: int,
    asked: Placement | str | Sequence[int] | None = None,
) -> dict[Placement, Costs]:
    """List the placements to try, each with the costs of its stages.

    Args:
        costs: of every stage: then all regular placements of so many stages are tried; or a
            function that gives the costs for a placement, such as ``Costs.of_ranks``: then those
            of ``PLACEMENTS`` are.
        num_ranks: p.
        asked: the only placement to try: a name, or the rank of each stage.

    Raises:
        UsageError: the stages cannot be shared evenly, or a placement is unknown or for another
            number of ranks.

    >>> list(map(str, costs_of_placements(Costs.uniform(8), num_ranks=4)))
    ['v', 'looped:2']
    """
    if not isinstance(num_ranks, int | np.integer):
        raise UsageError(f"ranks must be a whole number, not {num_ranks!r}")
    if num_ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {num_ranks}")
    if num_ranks > MOST_RANKS:
        raise UsageError(f"{num_ranks} ranks are too many for a search: at most {MOST_RANKS}")
    if not (isinstance(costs, Costs) or callable(costs)):
        raise UsageError(f"costs must be Costs, or a function that gives them, not {costs!r}")
    if asked is not None:
        places = [placement_of(asked, num_ranks)]
        if places[0].num_ranks != num_ranks:
            raise UsageError(f"placement {asked} has {places[0].num_ranks} ranks, not {num_ranks}")
    elif isinstance(costs, Costs):
        per_rank, rest = divmod(costs.num_stages, num_ranks)
        if rest or per_rank < 1:
            raise UsageError(
                f"{costs.num_stages} stages cannot be shared evenly by {num_ranks} ranks: give a "
                "placement"
            )
        places = [wave(num_ranks, per_rank), looped(num_ranks, per_rank)]
    else:
        places = [placement_named(name, num_ranks) for name in PLACEMENTS]
    return {place: _costs_of(costs, place) for place in places}


def _costs_of(costs: CostsOrFunction, place: Placement) -> Costs:
    found = costs if isinstance(costs, Costs) else costs(place)
    if not isinstance(found, Costs):
        raise UsageError(f"the costs for placement {place} must be Costs, not {found!r}")
    found.require_stages(place.num_stages, f"placement {place}")
    return found


def placement_of(asked: Placement | str | Sequence[int], num_ranks: int) -> Placement:
    """Find a placement by its name or the ranks of its stages."""
    if isinstance(asked, str):
        return placement_named(asked, num_ranks)
    if isinstance(asked, Placement):
        return asked
    try:
        return Placement(tuple(index(rank) for rank in asked))
    except TypeError:
        raise UsageError(
            f"placement must be a name or the rank of each stage, not {asked!r}"
        ) from None
