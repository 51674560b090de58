"""What would be measured if a run went otherwise than planned? Timelines that nothing ran."""

import numpy as np

from zerobubble.ir import Kind
from zerobubble.simulate import Timeline, simulate
from zerobubble.view.facts import Facts
from zerobubble.view.html import Measured
from zerobubble.waits import order_of_waits


def measured_of(dice, schedule, costs):
    """A run whose ops, copies and transfers take longer than planned, each by another share."""
    planned, durations = Facts(simulate(schedule, costs)), costs.durations()
    start, end = np.zeros(len(planned.codes)), np.zeros(len(planned.codes))
    arrived = np.full(schedule.num_codes, np.nan)
    for i in order_of_waits(schedule, planned.start, planned.end, costs.ranks_per_engine).tolist():
        op, need = schedule.op(planned.codes[i]), planned.needs[i]
        ready = ready_at(planned, end, i)
        if need >= 0 and op.kind != Kind.L:
            there = end[need]
            if planned.ranks[need] != planned.ranks[i]:
                there += (planned.input_there[i] - planned.made[i]) * dice.uniform(1, 2)
                there = arrived[planned.codes[need]] = max(there, ready)
            ready = max(ready, there)
        start[i] = ready + dice.choice([0, dice.random() / 10])
        end[i] = start[i] + durations[op.kind, op.stage] * dice.uniform(0.9, 1.3)
    return Measured(7, timeline_of(planned, start, end), arrived)


def timeline_of(facts, start, end):
    """The timeline of other times."""
    sides = (tuple(np.split(side, facts.offsets[1:-1])) for side in (start, end))
    return Timeline(facts.timeline.schedule, facts.timeline.costs, *sides)


def ready_at(facts, end, i):
    """When an op may start but for its input, at the ends of what comes before."""
    before = [0.0]
    if facts.kinds[i] != Kind.O:
        mine = np.arange(facts.offsets[facts.ranks[i]], i)
        before += end[mine[facts.kinds[mine] != Kind.L]].tolist()
    _, turn, _, load = (each[i] for each in facts.waits)
    before += [end[each] for each in (turn if facts.is_copy[i] else -1, load) if each >= 0]
    return max(before)


def delayed(timeline, code, delay):
    """Run a timeline again with one op or copy held back for a while."""
    schedule, facts = timeline.schedule, Facts(timeline)
    travel = np.maximum(facts.input_there - facts.made, 0)
    lasts = facts.end - facts.start
    start, end = np.zeros(len(lasts)), np.zeros(len(lasts))
    shared = timeline.costs.ranks_per_engine
    for i in order_of_waits(schedule, facts.start, facts.end, shared).tolist():
        need = facts.needs[i] if facts.kinds[i] != Kind.L else -1
        ready = max(ready_at(facts, end, i), end[need] + travel[i] if need >= 0 else 0.0)
        start[i] = ready + (delay if facts.codes[i] == code else 0)
        end[i] = start[i] + lasts[i]
    return timeline_of(facts, start, end)
