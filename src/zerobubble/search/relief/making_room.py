"""Which W must run sooner, so that every copy and every second forward finds room?

A relaxed problem lets W wait although a stage that is offloaded or run again holds more between its
B and its W than between its F and its B. So an order that was found for it is walked through with
the least that copies can make it hold: O right behind F, and L right before B.
"""

import numpy as np

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot
from zerobubble.search.relief import Decision


def make_room(
    schedule: Schedule, costs: Costs, decision: Decision, limits: Floats, spare: Floats
) -> Schedule | None:
    """Pull W forward where an op would exceed the limit less what is to be spare.

    Args:
        schedule: an order of F, B and W.
        costs: of its stages.
        decision: which of them are offloaded or run again.
        limits: memory limit of every rank.
        spare: what W leaves free of it, for copies that are under way.

    Returns:
        The new order, or None if it exceeds a limit although no W waits.
    """
    rest = decision.rest(costs)
    at_forward = np.where(decision.is_run_again, rest, costs.activation)
    none = np.zeros(costs.num_stages)
    beside = np.stack([at_forward, costs.activation - rest, none])
    after = np.stack([rest, costs.activation_kept - rest, -costs.activation_kept])
    orders = []
    for order, limit, free in zip(schedule.orders, limits, spare, strict=True):
        kinds, stages, _ = schedule.fields(order)
        is_input = (kinds == Kind.B).astype(np.int64)
        inputs = _inputs_of_weights(schedule, order)
        row = (beside[kinds, stages], after[kinds, stages], inputs, is_input)
        most, turn = limit * (1 + TOLERANCE), np.empty_like(order)
        done = np.zeros(len(order), np.int64)
        if not pull_weights(*row, most - free, most, done, turn, work=20 * len(order)):
            return None
        orders.append(order[turn])
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(orders))


def _inputs_of_weights(schedule: Schedule, order: Codes) -> Codes:
    """Give, for every op of a rank, the place of its B if it is a W, else -1."""
    pair = schedule.num_stages * schedule.num_microbatches
    places = np.full(3 * pair, -1)
    places[order] = np.arange(len(order))
    inputs = places[order - pair]
    inputs[order < 2 * pair] = -1
    return inputs


@hot
def pull_weights(
    beside: Floats,
    after: Floats,
    inputs: Codes,
    is_input: Codes,
    wanted: float,
    most: float,
    done: Codes,
    turn: Codes,
) -> bool:
    """Write the places of a rank's ops in their new order; say whether they fit.

    An op holds ``beside`` while it runs, and adds ``after`` to what is held from then on;
    ``inputs`` gives the place of a W's B, and -1 for other ops.
    """
    held, size, num_waiting, first = 0.0, 0, 0, 0
    for place in range(len(turn)):
        if done[place] == 1:
            continue
        while beside[place] > 0 and num_waiting > 0 and held + beside[place] > wanted:
            first = max(first, place + 1)
            while inputs[first] < 0 or done[first] == 1:
                first += 1
            pulled = first
            while done[pulled] == 1 or inputs[pulled] < 0 or inputs[pulled] >= place:
                pulled += 1
            turn[size] = pulled
            done[pulled] = 1
            held += after[pulled]
            size += 1
            num_waiting -= 1
        if held + beside[place] > most:
            return False
        turn[size] = place
        done[place] = 1
        held += after[place]
        size += 1
        if inputs[place] >= 0:
            num_waiting -= 1
        elif is_input[place] == 1:
            num_waiting += 1
    return True
