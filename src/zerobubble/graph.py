"""Which op waits for which, and in what order can they all run?"""

import numpy as np
from numpy.typing import NDArray

from zerobubble.errors import ScheduleError
from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.jit import hot

Ranks = NDArray[np.int32]

# In a line of waiting ranks: its end; the line of an op that has run.
_NOBODY, _DONE = -1, -2


def producers(schedule: Schedule) -> Codes:
    """Tabulate, for every op code, the op whose output it needs, or -1 for none.

    F needs the F of the stage before; B and BW need the B or BW of the stage after, on the last
    stage their own F; W needs its B, O its F, and L its O. That a B needs its own F too follows
    along this chain; that it needs its own L or R is told by the order of their rank.
    """
    codes = schedule.by_kind(np.arange(schedule.num_codes))
    backward = np.where(schedule.has(Kind.BW), codes[Kind.BW], codes[Kind.B])

    needs = np.full_like(codes, -1)
    needs[Kind.F, 1:] = codes[Kind.F, :-1]
    needs[Kind.B, :-1] = backward[1:]
    needs[Kind.B, -1] = codes[Kind.F, -1]
    needs[Kind.BW] = needs[Kind.B]
    needs[Kind.W] = codes[Kind.B]
    if schedule.has_copies:
        needs[Kind.O] = codes[Kind.F]
        needs[Kind.L] = codes[Kind.O]
    table: Codes = needs.reshape(-1)
    table.setflags(write=False)
    return table


def places(schedule: Schedule) -> tuple[Codes, Codes]:
    """Tabulate, for every op code, the rank that runs it and its index there, or -1 for none.

    Of an op that runs several times, the last place is told.
    """
    ranks, indices = (np.full(schedule.num_codes, -1) for _ in range(2))
    for rank, order in enumerate(schedule.orders):
        ranks[order] = rank
        indices[order] = np.arange(len(order))
    return ranks, indices


def crossings(schedule: Schedule) -> tuple[Codes, Codes]:
    """List the ops whose output travels to another rank, and the op that reads each of them.

    They come in the order of the senders and, within a sender, of its ops.

    >>> from zerobubble.ir import BW, F, linear
    >>> orders = [[F(0, 0), BW(0, 0)], [F(1, 0), BW(1, 0)]]
    >>> ops, readers = crossings(s := Schedule.from_ops("mine", linear(2), 1, orders))
    >>> [(str(s.op(op)), str(s.op(reader))) for op, reader in zip(ops, readers, strict=True)]
    [('F0 of stage 0', 'F0 of stage 1'), ('BW0 of stage 1', 'BW0 of stage 0')]
    """
    readers, _ = schedule.flat()
    ops = producers(schedule)[readers]
    ranks, indices = places(schedule)
    crosses = (ops >= 0) & (ranks[ops] != ranks[readers])
    ops, readers = ops[crosses], readers[crosses]
    order = np.lexsort((indices[ops], ranks[ops]))
    return ops[order], readers[order]


def run_order(schedule: Schedule) -> Codes:
    """List all op codes in one order that obeys the rank orders and the data dependencies.

    Raises:
        ScheduleError: there is none; the message names the ops that wait for each other in a
            circle, or the op that is waited for but that no rank runs.
    """
    needs, (codes, offsets) = producers(schedule), schedule.flat()
    positions, order_of_all = offsets[:-1].copy(), np.empty_like(codes)
    waiting = np.full(schedule.num_codes, _NOBODY, dtype=np.int32)
    behind = np.arange(schedule.num_ranks, dtype=np.int32) - 1
    tables = (codes, offsets, needs, positions, order_of_all, waiting, behind)
    num_done = _run(*tables, work=len(codes), adds_up=True)
    if num_done < len(codes):
        stops = (positions - offsets[:-1]).tolist()
        raise ScheduleError(f"{schedule.name}: {_explain_stop(schedule, needs, stops)}")
    return order_of_all


@hot
def _run(
    codes: Codes,
    offsets: Codes,
    needs: Codes,
    positions: Codes,
    order_of_all: Codes,
    waiting: Ranks,
    behind: Ranks,
) -> int:
    """Run each rank as far as it goes, from where it stands in ``codes``; count the ops that ran.

    The ranks that wait for an op stand in a line that begins with rank ``waiting[op]``, and those
    that can run in another; ``behind[rank]`` is the next one in the line of a rank.
    """
    runnable = len(behind) - 1
    num_done = 0
    while runnable != _NOBODY:
        rank = runnable
        runnable = behind[rank]
        position, end = positions[rank], offsets[rank + 1]
        while position < end:
            code = codes[position]
            need = needs[code]
            if need >= 0 and waiting[need] != _DONE:
                behind[rank] = waiting[need]
                waiting[need] = rank
                break
            waiter = waiting[code]
            while waiter >= 0:
                next_waiter = behind[waiter]
                behind[waiter] = runnable
                runnable, waiter = waiter, next_waiter
            waiting[code] = _DONE
            order_of_all[num_done] = code
            num_done += 1
            position += 1
        positions[rank] = position
    return num_done


def _explain_stop(schedule: Schedule, needs: Codes, positions: list[int]) -> str:
    """Say which circle of waiting ops, or which missing op, stops the ranks at these positions."""
    rank_of, _ = places(schedule)
    rank = next(r for r, order in enumerate(schedule.orders) if positions[r] < len(order))
    seen: dict[int, str] = {}
    while rank not in seen:
        code = int(schedule.orders[rank][positions[rank]])
        need = int(needs[code])
        seen[rank] = f"rank {rank} waits in {schedule.op(code)} for {schedule.op(need)}"
        if rank_of[need] < 0:
            return f"{seen[rank]}, which no rank runs (rule no-cycle): add it"
        rank = int(rank_of[need])
    circle = list(seen.values())[list(seen).index(rank) :]
    return f"{'; '.join(circle)}: a circle (rule no-cycle): move one of these ops earlier"
