"""Schedules in which activations leave the device, or are computed again: made from any other."""

import random

from zerobubble.ir import Kind, L, O, R, Schedule

BACKWARDS = (Kind.B, Kind.BW)


def moved(schedule, kinds="OR", seed=0):
    """Add O and L, or R, for every stage and microbatch; a kind of "-" leaves one as it is.

    O comes anywhere behind F and L anywhere between O and the backward; R right before it.
    """
    chosen = random.Random(seed)
    orders = [
        _with_moves(list(schedule.ops(rank)), chosen, kinds) for rank in range(schedule.num_ranks)
    ]
    name = f"{schedule.name}-{kinds}"
    return Schedule.from_ops(name, schedule.placement, schedule.num_microbatches, orders)


def _with_moves(ops, chosen, kinds):
    for op in [op for op in ops if op.kind is Kind.F]:
        cell = op.stage, op.microbatch
        first = ops.index(op)
        last = next(i for i, o in enumerate(ops) if o.kind in BACKWARDS and o[1:] == cell)
        kind = chosen.choice(kinds)
        if kind == "R":
            ops.insert(last, R(*cell))
        elif kind == "O":
            out, back = sorted(chosen.randint(first + 1, last) for _ in range(2))
            ops.insert(back, L(*cell))
            ops.insert(out, O(*cell))
    return ops
