"""How good can a schedule be at best that may offload activations or compute them again?

Take any schedule that is no longer than T. Without its O, L and R it is a schedule of F, B and W
that is no longer, so the bounds for those hold for it, if only the memory that they count is no
more than it uses. There are two ways to count:

- On device and host together. What is on the host at some time left before, and comes back after:
  with speeds out and in, and t of the time gone, no more than the smaller of out t and in (T - t),
  which is T out in / (out + in) at most. So all that is held is at most the limit and that.
- On the device alone. There a microbatch holds between F and B at least what no O and no R frees.
"""

from dataclasses import replace

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Placement
from zerobubble.search.bounds import Bound, lower_bound, lower_bounds
from zerobubble.search.problem import Objective
from zerobubble.search.relief import Relief, holding


def relieved_bound(
    costs: Costs,
    placement: Placement,
    num_microbatches: int,
    limits: Floats,
    objective: Objective,
    relief: Relief,
    time: float = np.inf,
) -> Bound:
    """Give a span or makespan that no schedule beats which is no longer than ``time``.

    Arguments as for ``lower_bound``, whose value it is where neither is allowed.

    >>> from zerobubble.ir import linear
    >>> problem = Costs.uniform(2).with_bandwidth(0.25), linear(2), 8, np.array([1.0, 1.0]), "span"
    >>> [relieved_bound(*problem, Relief(offload), time=40).value for offload in ("off", "auto")]
    [40.0, 24.0]
    """
    anywhere = costs.activation_input if relief.may_run_again else costs.activation
    together = limits + (host_room(costs, placement, time) if relief.may_offload else 0.0)
    on_device = relief.rest(costs)
    found = []
    for held, memory in ((anywhere, together), (on_device, limits)):
        needed = np.bincount(placement.stage_to_rank, weights=held)
        found.append(
            lower_bound(
                holding(costs, held), placement, num_microbatches,
                np.maximum(memory, needed), objective,
            )
        )  # fmt: skip
    if relief.recompute == "full":
        found.append(_work_with_recompute(costs, placement, num_microbatches, objective))
    return max(found, key=lambda bound: bound.value)


def bound_of_any(
    costs: Costs,
    placement: Placement,
    num_microbatches: int,
    limits: Floats,
    objective: Objective,
    relief: Relief,
    time: float = np.inf,
) -> Bound:
    """Give the bound that holds with light recompute and without, where both may be."""
    problem = (placement, num_microbatches, limits, objective, relief, time)
    bounds = [relieved_bound(variant, *problem) for variant in relief.variants(costs)]
    return min(bounds, key=lambda bound: bound.value)


def host_room(costs: Costs, placement: Placement, time: float) -> Floats:
    """Give the most that a rank can have on the host at any time of a step no longer than that.

    The first F runs before all copies, and the last B and its W after them.

    >>> from zerobubble.ir import linear
    >>> host_room(Costs.uniform(1).with_bandwidth(1), linear(1), time=9).tolist()
    [3.0]
    """
    after = costs.backward_input + costs.backward_weight
    moved = costs.activation_offloaded
    rooms = np.zeros(placement.num_ranks)
    for rank in range(placement.num_ranks):
        stages = [stage for stage in placement.stages_of(rank) if moved[stage] > 0]
        if stages:
            left = max(0.0, time - costs.forward[stages].min() - after[stages].min())
            trip = sum((copy[stages] / moved[stages]).min() for copy in (costs.offload, costs.load))
            rooms[rank] = left / trip if trip > 0 else np.inf
    return rooms


def _work_with_recompute(
    costs: Costs, placement: Placement, num_microbatches: int, objective: Objective
) -> Bound:
    """Bound the time by the work where every stage is run again; memory is not looked at."""
    longer = replace(costs, backward_weight=costs.backward_weight + costs.recompute)
    found = [
        bound
        for bound in lower_bounds(longer, placement, num_microbatches, np.inf, objective)
        if bound.name == "load"
    ]
    return found[0]
