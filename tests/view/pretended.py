"""What would be measured if a run went otherwise than planned? Timelines that nothing ran."""

import numpy as np

from zerobubble.graph import producers, run_order
from zerobubble.ir import Kind
from zerobubble.simulate import Timeline
from zerobubble.view.facts import Facts
from zerobubble.view.html import Measured
from zerobubble.waits import order_of_waits


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
    """Run a timeline again with one op or copy held back for a while."""
    schedule, facts = timeline.schedule, Facts(timeline)
    travel = np.maximum(facts.input_there - facts.made, 0)
    lasts = facts.end - facts.start
    start, end = np.zeros(len(lasts)), np.zeros(len(lasts))
    shared = timeline.costs.ranks_per_engine
    for i in order_of_waits(schedule, facts.start, shared).tolist():
        rank, kind, before = facts.ranks[i], facts.kinds[i], []
        _, turn, need, load = (each[i] for each in facts.waits)
        if kind != Kind.O:
            mine = np.arange(facts.offsets[rank], i)
            before = end[mine[facts.kinds[mine] != Kind.L]].tolist()
        if need >= 0 and kind != Kind.L:
            before.append(end[need] + travel[i])
        before += [end[each] for each in (turn if facts.is_copy[i] else -1, load) if each >= 0]
        start[i] = max(before, default=0) + (delay if facts.codes[i] == code else 0)
        end[i] = start[i] + lasts[i]
    sides = (tuple(np.split(side, facts.offsets[1:-1])) for side in (start, end))
    return Timeline(schedule, timeline.costs, *sides)
