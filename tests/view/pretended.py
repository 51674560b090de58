"""What would be measured if a run went otherwise than planned? Timelines that nothing ran."""

import numpy as np

from zerobubble.graph import producers, run_order
from zerobubble.simulate import Timeline
from zerobubble.view.facts import Facts
from zerobubble.view.html import Measured


def measured_of(dice, schedule, costs):
    """A run whose ops and transfers take longer than planned, each by another share."""
    needs, travel = producers(schedule), np.asarray(costs.transfer)
    holders = schedule.placement.stage_to_rank
    start, end = np.zeros(schedule.num_codes), np.zeros(schedule.num_codes)
    arrived, free = np.full(schedule.num_codes, np.nan), np.zeros(schedule.num_ranks)
    for code in run_order(schedule).tolist():
        op, need = schedule.op(code), int(needs[code])
        rank = holders[op.stage]
        ready = free[rank]
        if need >= 0:
            maker = schedule.op(need)
            there = end[need]
            if holders[maker.stage] != rank:
                there += travel[min(op.stage, maker.stage)] * dice.uniform(1, 2)
                there = arrived[need] = max(there, ready)
            ready = max(ready, there)
        start[code] = ready + dice.choice([0, dice.random() / 10])
        end[code] = start[code] + costs.durations()[op.kind, op.stage] * dice.uniform(0.9, 1.3)
        free[rank] = end[code]
    sides = (tuple(side[order] for order in schedule.orders) for side in (start, end))
    return Measured(7, Timeline(schedule, costs, *sides), arrived)


def delayed(timeline, code, delay):
    """Run a timeline again with one op held back for a while."""
    schedule, costs = timeline.schedule, timeline.costs
    needs, facts = producers(schedule), Facts(timeline)
    travel = np.maximum(facts.input_there - facts.made, 0)
    start, end = np.zeros(schedule.num_codes), np.zeros(schedule.num_codes)
    free = np.zeros(schedule.num_ranks)
    for each in run_order(schedule).tolist():
        i = int(facts.index_of[each])
        rank = int(facts.ranks[i])
        ready = end[needs[each]] + travel[i] if needs[each] >= 0 else 0.0
        start[each] = max(free[rank], ready) + (delay if each == code else 0)
        end[each] = free[rank] = start[each] + facts.end[i] - facts.start[i]
    sides = (tuple(side[order] for order in schedule.orders) for side in (start, end))
    return Timeline(schedule, costs, *sides)
