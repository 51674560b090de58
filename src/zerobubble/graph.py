"""Which op waits for which, and in what order can they all run?"""

import numpy as np

from zerobubble.errors import ScheduleError
from zerobubble.ir import Codes, Kind, Schedule


def producers(schedule: Schedule) -> Codes:
    """Tabulate, for every op code, the op whose output it needs, or -1 for none.

    F needs the F of the stage before; B and BW need the B or BW of the stage after, on the last
    stage their own F; W needs its B. That a B needs its own F too follows along this chain.
    """
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    codes = np.arange(schedule.num_codes).reshape(len(Kind), num_stages, num_microbatches)
    is_fused = np.zeros(schedule.num_codes, dtype=bool)
    for order in schedule.orders:
        is_fused[order] = True
    backward = np.where(is_fused.reshape(codes.shape)[Kind.BW], codes[Kind.BW], codes[Kind.B])

    needs = np.full_like(codes, -1)
    needs[Kind.F, 1:] = codes[Kind.F, :-1]
    needs[Kind.B, :-1] = backward[1:]
    needs[Kind.B, -1] = codes[Kind.F, -1]
    needs[Kind.BW] = needs[Kind.B]
    needs[Kind.W] = codes[Kind.B]
    return needs.reshape(-1)


def run_order(schedule: Schedule) -> list[int]:
    """List all op codes in one order that obeys the rank orders and the data dependencies.

    Raises:
        ScheduleError: there is none; the message names the ops that wait for each other in a
            circle, or the op that is waited for but that no rank runs.
    """
    needs = producers(schedule).tolist()
    orders = [order.tolist() for order in schedule.orders]
    positions = [0] * schedule.num_ranks
    done = bytearray(schedule.num_codes)
    waiting: dict[int, list[int]] = {}
    order_of_all: list[int] = []
    runnable = list(range(schedule.num_ranks))
    while runnable:
        rank = runnable.pop()
        order, position = orders[rank], positions[rank]
        while position < len(order):
            code = order[position]
            need = needs[code]
            if need >= 0 and not done[need]:
                waiting.setdefault(need, []).append(rank)
                break
            done[code] = True
            order_of_all.append(code)
            position += 1
            if code in waiting:
                runnable.extend(waiting.pop(code))
        positions[rank] = position
    if len(order_of_all) < schedule.num_ops:
        raise ScheduleError(f"{schedule.name}: {_explain_stop(schedule, needs, positions)}")
    return order_of_all


def _explain_stop(schedule: Schedule, needs: list[int], positions: list[int]) -> str:
    """Say which circle of waiting ops, or which missing op, stops the ranks at these positions."""
    rank_of = {code: rank for rank, order in enumerate(schedule.orders) for code in order.tolist()}
    rank = next(r for r, order in enumerate(schedule.orders) if positions[r] < len(order))
    seen: dict[int, str] = {}
    while rank not in seen:
        code = int(schedule.orders[rank][positions[rank]])
        op, need = schedule.op(code), schedule.op(needs[code])
        seen[rank] = f"rank {rank} waits in {op} for {need}"
        if needs[code] not in rank_of:
            return f"{seen[rank]}, which no rank runs (rule no-cycle): add it"
        rank = rank_of[needs[code]]
    circle = list(seen.values())[list(seen).index(rank) :]
    return f"{'; '.join(circle)}: a circle (rule no-cycle): move one of these ops earlier"
