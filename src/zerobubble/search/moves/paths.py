"""What is the longest path through every op of an order, and how does a move change it?

An order of all ranks is a graph: an op follows the one before it on its rank, and the one whose
output it reads. The head of an op is the longest path that leads to it, which is its start; its
tail the longest path from its start to the end of a rank, less the start of that rank for spans.
Head and tail together can be no more than the objective, and are as much on a critical path.
"""

from typing import NamedTuple

import numpy as np

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes
from zerobubble.jit import hot
from zerobubble.search.orders.arrangement import USUAL_NUMBER_OF_RUNS, Arrangement
from zerobubble.search.orders.instance import instance_of
from zerobubble.search.problem import Problem

_NOWHERE = -1e300
# Parts of a unit of time.
_GRID = 2.0**32


class Links(NamedTuple):
    """What no order changes; by row, which is the number of kind and stage, unless said otherwise.

    Attributes:
        rows: per op code, its row.
        duration: time of the op.
        before: how far from its code is that of the op whose output it reads, 0 for none.
        lag: time from that op's end until its output is here.
        after: likewise for the ops that read its output, two for each row.
        lags: time from its end until they have it.
        ranks: where it runs.
        change: of the memory in use, when it has run.
        offsets: per rank, where its ops begin in an order; and the end.
        limits: per rank, the memory it has.
        from_start: 1 if ranks count from their own start, 0 if from that of the first.
    """

    rows: Codes
    duration: Floats
    before: Codes
    lag: Floats
    after: Codes
    lags: Floats
    ranks: Codes
    change: Floats
    offsets: Codes
    limits: Floats
    from_start: float


def links_of(problem: Problem) -> Links:
    """Tabulate the links of a problem."""
    instance = instance_of(problem)
    num_stages, count = problem.placement.num_stages, problem.num_microbatches
    before, lag = np.zeros((3, num_stages), np.int64), np.zeros((3, num_stages))
    after, lags = np.zeros((3, num_stages, 2), np.int64), np.zeros((3, num_stages, 2))
    travel, all_stages = instance.travel[:-1], num_stages * count
    before[0, 1:], lag[0, 1:] = -count, travel
    before[1, :-1], lag[1, :-1] = count, travel
    before[1, -1], before[2] = -all_stages, -all_stages
    after[0, :-1, 0], lags[0, :-1, 0] = count, travel
    after[0, -1, 0] = all_stages
    after[1, 1:, 0], lags[1, 1:, 0] = -count, travel
    after[1, :, 1] = all_stages
    changes = (instance.held, instance.kept - instance.held, -instance.kept)
    return Links(
        np.arange(problem.num_ops) // count,
        _on_grid(problem.costs.durations()[:3].reshape(-1)),
        before.reshape(-1),
        _on_grid(lag.reshape(-1)),
        after.reshape(-1),
        _on_grid(lags.reshape(-1)),
        np.tile(instance.holders, 3),
        np.concatenate(changes),
        3 * count * instance.offsets,
        instance.limits * (1 + TOLERANCE),
        float(problem.objective == "span"),
    )


def _on_grid(times: Floats) -> Floats:
    """Round times so that sums of them are exact in any order, and equal paths equally long."""
    rounded: Floats = np.round(times * _GRID) / _GRID
    return rounded


class Paths(NamedTuple):
    """An order of the ops and what follows from it; by op code unless said otherwise.

    Attributes:
        order: op codes of rank 0 in its order, then those of rank 1, ...
        places: where the op is in ``order``.
        line: all ops, each after those that it follows.
        turns: where the op is in ``line``.
        heads, tails: longest path to the op, and from its start.
        memory: by place in ``order``, what its rank holds after that op.
        marks: scratch, 0 between calls: ops that must be lined up elsewhere.
        dirty: scratch, 0 between calls: by turn, ops whose head or tail may change.
        spare: scratch.
    """

    order: Codes
    places: Codes
    line: Codes
    turns: Codes
    heads: Floats
    tails: Floats
    memory: Floats
    marks: Codes
    dirty: Codes
    spare: Codes


def paths_of(arrangement: Arrangement, links: Links) -> Paths:
    """Find the paths of an order that the ranks can follow."""
    num_ops = len(arrangement.codes)
    order, places = arrangement.codes.copy(), np.empty(num_ops, np.int64)
    places[order] = np.arange(num_ops)
    line, turns, marks, dirty, spare = (np.zeros(num_ops, np.int64) for _ in range(5))
    heads, tails, memory = (np.zeros(num_ops) for _ in range(3))
    paths = Paths(order, places, line, turns, heads, tails, memory, marks, dirty, spare)
    line_up(links, paths, work=USUAL_NUMBER_OF_RUNS * num_ops)
    # In the order of time, so that ops which are close in time have close turns.
    line[:] = line[np.argsort(arrangement.start[line], kind="stable")]
    return paths


@hot
def lay_out(links: Links, paths: Paths) -> float:
    """Work out everything from the order and the line; return the objective."""
    for rank in range(len(links.limits)):
        memory = 0.0
        for place in range(links.offsets[rank], links.offsets[rank + 1]):
            code = paths.order[place]
            paths.places[code] = place
            memory += links.change[links.rows[code]]
            paths.memory[place] = memory
    for turn in range(len(paths.line)):
        code = paths.line[turn]
        paths.turns[code] = turn
        paths.heads[code] = head_of(links, paths, code)
    for turn in range(len(paths.line) - 1, -1, -1):
        code = paths.line[turn]
        paths.tails[code] = tail_of(links, paths, code)
    return float(paths.tails[paths.line[0]])


@hot
def line_up(links: Links, paths: Paths) -> None:
    """Line all ops up, each after those that it follows."""
    num_ops, count = len(paths.order), 0
    for code in range(num_ops):
        paths.turns[code] = num_ops
    for rank in range(len(links.limits)):
        paths.spare[rank] = links.offsets[rank]
    while count < num_ops:
        for rank in range(len(links.limits)):
            while paths.spare[rank] < links.offsets[rank + 1]:
                code = paths.order[paths.spare[rank]]
                before = links.before[links.rows[code]]
                if before != 0 and paths.turns[code + before] == num_ops:
                    break
                paths.line[count], paths.turns[code] = code, count
                paths.spare[rank] += 1
                count += 1


@hot
def head_of(links: Links, paths: Paths, code: int) -> float:
    """Give the head of an op, given those of the ops that it follows."""
    row = links.rows[code]
    head, place = arrival(links, paths, code, row), paths.places[code]
    if place > links.offsets[links.ranks[row]]:
        head = max(head, end_of(links, paths, paths.order[place - 1]))
    return float(head)


@hot
def tail_of(links: Links, paths: Paths, code: int) -> float:
    """Give the tail of an op, given those of the ops that follow it."""
    row = links.rows[code]
    on_rank = rest(links, paths, paths.places[code] + 1, links.ranks[row])
    return float(links.duration[row] + max(on_rank, departure(links, paths, code, row)))


@hot
def end_of(links: Links, paths: Paths, code: int) -> float:
    """Give the end of an op."""
    return float(paths.heads[code] + links.duration[links.rows[code]])


@hot
def arrival(links: Links, paths: Paths, code: int, row: int) -> float:
    """Say when the input of an op is there."""
    if links.before[row] == 0:
        return 0.0
    return float(end_of(links, paths, code + links.before[row]) + links.lag[row])


@hot
def departure(links: Links, paths: Paths, code: int, row: int) -> float:
    """Give the longest path from the end of an op through the ops that read its output."""
    longest = _NOWHERE
    for index in range(2 * row, 2 * row + 2):
        if links.after[index] != 0:
            longest = max(longest, paths.tails[code + links.after[index]] + links.lags[index])
    return longest


@hot
def rest(links: Links, paths: Paths, place: int, rank: int) -> float:
    """Give the longest path on a rank from a place in the order on."""
    if place < links.offsets[rank + 1]:
        return float(paths.tails[paths.order[place]])
    return float(-links.from_start * paths.heads[paths.order[links.offsets[rank]]])


@hot
def move(links: Links, paths: Paths, source: int, target: int) -> float:
    """Move an op from one place of its rank to another; return the objective."""
    code, other, step = paths.order[source], paths.order[target], 1
    if target < source:
        step = -1
    place = source
    while place != target:
        shifted = paths.order[place + step]
        paths.order[place], paths.places[shifted] = shifted, place
        place += step
    paths.order[target], paths.places[code] = code, target
    first = min(source, target)
    memory = paths.memory[first - 1]
    for place in range(first, max(source, target) + 1):
        memory += links.change[links.rows[paths.order[place]]]
        paths.memory[place] = memory
    if target > source:
        delay(links, paths, paths.turns[code], paths.turns[other])
    else:
        advance(links, paths, paths.turns[other], paths.turns[code])
    num_starts = spread_heads(links, paths, first, max(source, target))
    spread_tails(links, paths, first, max(source, target), num_starts)
    return float(paths.tails[paths.line[0]])


@hot
def spread_heads(links: Links, paths: Paths, first: int, last: int) -> int:
    """Find the heads that change with the order between two places of a rank.

    Returns:
        How many ranks start at another time; they are listed in ``spare``.
    """
    rank, num_starts, num_dirty = links.ranks[links.rows[paths.order[first]]], 0, 0
    turn = len(paths.line)
    for place in range(first, min(last + 2, links.offsets[rank + 1])):
        num_dirty += smear(paths, paths.order[place])
        turn = min(turn, paths.turns[paths.order[place]])
    while num_dirty > 0:
        if paths.dirty[turn] == 1:
            paths.dirty[turn] = 0
            num_dirty -= 1
            code = paths.line[turn]
            head = head_of(links, paths, code)
            if head != paths.heads[code]:
                paths.heads[code] = head
                row, place = links.rows[code], paths.places[code]
                if place == links.offsets[links.ranks[row]]:
                    paths.spare[num_starts] = links.ranks[row]
                    num_starts += 1
                if place + 1 < links.offsets[links.ranks[row] + 1]:
                    num_dirty += smear(paths, paths.order[place + 1])
                for index in range(2 * row, 2 * row + 2):
                    if links.after[index] != 0:
                        num_dirty += smear(paths, code + links.after[index])
        turn += 1
    return num_starts


@hot
def spread_tails(links: Links, paths: Paths, first: int, last: int, num_starts: int) -> None:
    """Find the tails that change with the order between two places, and with starts of ranks."""
    turn, num_dirty = 0, 0
    for place in range(first - 1, last + 1):
        num_dirty += smear(paths, paths.order[place])
        turn = max(turn, paths.turns[paths.order[place]])
    for index in range(num_starts):
        code = paths.order[links.offsets[paths.spare[index] + 1] - 1]
        num_dirty += smear(paths, code)
        turn = max(turn, paths.turns[code])
    while num_dirty > 0:
        if paths.dirty[turn] == 1:
            paths.dirty[turn] = 0
            num_dirty -= 1
            code = paths.line[turn]
            tail = tail_of(links, paths, code)
            if tail != paths.tails[code]:
                paths.tails[code] = tail
                row, place = links.rows[code], paths.places[code]
                if place > links.offsets[links.ranks[row]]:
                    num_dirty += smear(paths, paths.order[place - 1])
                if links.before[row] != 0:
                    num_dirty += smear(paths, code + links.before[row])
        turn -= 1


@hot
def smear(paths: Paths, code: int) -> int:
    """Make an op dirty; say whether it was clean."""
    turn = paths.turns[code]
    was_dirty = paths.dirty[turn]
    paths.dirty[turn] = 1
    return int(1 - was_dirty)


@hot
def delay(links: Links, paths: Paths, begin: int, end: int) -> None:
    """Line up the op at one turn, and those that follow it, behind the op at a later turn."""
    free, num_marked = begin, 0
    for turn in range(begin, end + 1):
        code = paths.line[turn]
        row, place = links.rows[code], paths.places[code]
        is_marked = turn == begin
        if links.before[row] != 0 and paths.marks[code + links.before[row]] == 1:
            is_marked = True
        if place > links.offsets[links.ranks[row]] and paths.marks[paths.order[place - 1]] == 1:
            is_marked = True
        if is_marked:
            paths.marks[code], paths.spare[num_marked] = 1, code
            num_marked += 1
        else:
            paths.line[free], paths.turns[code] = code, free
            free += 1
    for index in range(num_marked):
        code = paths.spare[index]
        paths.line[free], paths.turns[code], paths.marks[code] = code, free, 0
        free += 1


@hot
def advance(links: Links, paths: Paths, begin: int, end: int) -> None:
    """Line up the op at one turn, and those that it follows, before the op at an earlier turn."""
    free, num_marked = end, 0
    for turn in range(end, begin - 1, -1):
        code, is_marked = paths.line[turn], turn == end
        row, place = links.rows[code], paths.places[code] + 1
        for index in range(2 * row, 2 * row + 2):
            if links.after[index] != 0 and paths.marks[code + links.after[index]] == 1:
                is_marked = True
        if place < links.offsets[links.ranks[row] + 1] and paths.marks[paths.order[place]] == 1:
            is_marked = True
        if is_marked:
            paths.marks[code], paths.spare[num_marked] = 1, code
            num_marked += 1
        else:
            paths.line[free], paths.turns[code] = code, free
            free -= 1
    for index in range(num_marked):
        code = paths.spare[index]
        paths.line[free], paths.turns[code], paths.marks[code] = code, free, 0
        free -= 1
