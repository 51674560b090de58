"""Which placements are tried, and what do the stages cost under each of them?"""

from collections.abc import Callable

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Placement, looped, placement_named, wave

# What is tried where the costs leave the number of stages open.
PLACEMENTS = ("linear", "v", "looped:2", "wave:4")

CostsOrFunction = Costs | Callable[[Placement], Costs]


def costs_of_placements(
    costs: CostsOrFunction, num_ranks: int, asked: Placement | str | None = None
) -> dict[Placement, Costs]:
    """List the placements to try, each with the costs of its stages.

    Args:
        costs: of every stage: then all regular placements of so many stages are tried; or a
            function that gives the costs for a placement, such as ``Costs.of_ranks``: then those
            of ``PLACEMENTS`` are.
        num_ranks: p.
        asked: the only placement to try.

    Raises:
        UsageError: the stages cannot be shared evenly, or a placement is unknown or for another
            number of ranks.

    >>> list(map(str, costs_of_placements(Costs.uniform(8), num_ranks=4)))
    ['v', 'looped:2']
    """
    if num_ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {num_ranks}")
    if asked is not None:
        places = [placement_named(asked, num_ranks) if isinstance(asked, str) else asked]
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
    return {place: costs if isinstance(costs, Costs) else costs(place) for place in places}
