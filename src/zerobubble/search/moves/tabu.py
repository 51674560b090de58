"""How is an order improved where it matters? Tabu search on its critical paths.

Only a move of an op that is on a critical path can make an order shorter, and of a run of such ops
on one rank only to its front or to its end: the neighbourhood of Balas and Vazacopoulos
(Management Science 44, 1998) for job shops, here with memory limits. How long an order would be
after a move is estimated from heads and tails; the best move is made even if it makes things
worse, and what it reversed is tabu for a while, so that the search leaves where it has been.
"""

from collections.abc import Sequence
from threading import Event
from typing import NamedTuple

import numpy as np

from zerobubble.costs import TOLERANCE, Floats
from zerobubble.ir import Codes
from zerobubble.jit import hot
from zerobubble.search.moves.paths import (
    Links,
    Paths,
    arrival,
    departure,
    end_of,
    lay_out,
    links_of,
    move,
    paths_of,
    rest,
)
from zerobubble.search.orders.arrangement import USUAL_NUMBER_OF_RUNS, Arrangement, arrange
from zerobubble.search.threads import side_by_side

_NEVER = 1e300
# How far ops are moved, and for how many moves what was reversed is tabu.
_REACH = 40
_SHORTEST_TENURE, _TENURES = 10, 11
# Without improvement for so many moves, or without any move for so many tries, the search goes back
# to the best order and shakes it.
_PATIENCE, _STUCK = 5_000, 50
_MOST_SHAKES, _SHAKE_REACH = 20, 5
_TABU_SIZE = 1 << 18
# A search that is given up ends after so many moves.
_CHUNK = 1_000
# What a walk counts: moves made, the move of the last improvement, and random numbers.
_MOVES, _LAST_BETTER, _NUM_STUCK, _RANDOM = 0, 1, 2, 3


class Walk(NamedTuple):
    """What a walk from order to order remembers.

    Attributes:
        best, best_line: the best order so far, and its ops each after those that it follows.
        tabu: for pairs of ops, by hash, the move until which the first stays before the second.
        path: scratch: ops on a critical path.
        heads: scratch: of ops that would change places.
        counts: moves made, the last that led to a new best, how often since then nothing could
            move, and the state of the random numbers.
        values: objective of the order it stands at, and of the best.
    """

    best: Codes
    best_line: Codes
    tabu: Codes
    path: Codes
    heads: Floats
    counts: Codes
    values: Floats


def tabu_searched(starts: Sequence[Arrangement], num_moves: int, bound: float) -> list[Arrangement]:
    """Improve each order by so many moves, on a thread of its own; stop at the bound."""
    return side_by_side(lambda each, stop: _improved(each, num_moves, bound, stop), starts)


def _improved(
    arrangement: Arrangement, num_moves: int, bound: float, cancelled: Event
) -> Arrangement:
    problem = arrangement.problem
    links = links_of(problem)
    paths = paths_of(arrangement, links)
    walk = begin(links, paths)
    work = USUAL_NUMBER_OF_RUNS * problem.num_ops
    for done in range(0, num_moves, _CHUNK):
        if cancelled.is_set() or walk.values[1] <= bound:
            break
        walk_on(links, paths, walk, min(num_moves, done + _CHUNK), bound, work=work)
    best = arrange(problem, walk.best)
    assert best is not None, "no move closes a circle"
    return best


def begin(links: Links, paths: Paths) -> Walk:
    """Start at an order."""
    num_ops = len(paths.order)
    value = lay_out(links, paths, work=USUAL_NUMBER_OF_RUNS * num_ops)
    return Walk(
        paths.order.copy(),
        paths.line.copy(),
        np.zeros(_TABU_SIZE, np.int64),
        np.zeros(num_ops, np.int64),
        np.zeros(num_ops),
        np.zeros(4, np.int64),
        np.array([value, value]),
    )


@hot
def walk_on(links: Links, paths: Paths, walk: Walk, num_moves: int, bound: float) -> None:
    """Go on until so many moves have been made in all, or the bound is reached."""
    while walk.counts[_MOVES] < num_moves and walk.values[1] > bound:
        walk.counts[_MOVES] += 1
        source, target = choose(links, paths, walk, trace(links, paths, walk))
        if source >= 0:
            forbid_return(paths, walk, source, target)
            walk.values[0] = move(links, paths, source, target)
        else:
            walk.counts[_NUM_STUCK] += 1
        if walk.values[0] < walk.values[1] - TOLERANCE:
            keep(paths, walk)
        elif (
            walk.counts[_MOVES] - walk.counts[_LAST_BETTER] > _PATIENCE
            or walk.counts[_NUM_STUCK] > _STUCK
        ):
            shake_best(links, paths, walk)


@hot
def keep(paths: Paths, walk: Walk) -> None:
    """Take note of the order as the best."""
    walk.values[1] = walk.values[0]
    walk.counts[_LAST_BETTER], walk.counts[_NUM_STUCK] = walk.counts[_MOVES], 0
    for place in range(len(walk.best)):
        walk.best[place], walk.best_line[place] = paths.order[place], paths.line[place]


@hot
def shake_best(links: Links, paths: Paths, walk: Walk) -> None:
    """Go back to the best order, and move a few ops of any rank a little."""
    walk.counts[_LAST_BETTER], walk.counts[_NUM_STUCK] = walk.counts[_MOVES], 0
    for place in range(len(walk.best)):
        paths.order[place], paths.line[place] = walk.best[place], walk.best_line[place]
    walk.values[0] = lay_out(links, paths)
    for _ in range(1 + draw(walk, _MOST_SHAKES)):
        source = draw(walk, len(paths.order))
        rank = links.ranks[links.rows[paths.order[source]]]
        target = source + draw(walk, 2 * _SHAKE_REACH + 1) - _SHAKE_REACH
        is_there = links.offsets[rank] <= target < links.offsets[rank + 1]
        if is_there and target != source and may_move(links, paths, source, target):
            walk.values[0] = move(links, paths, source, target)


@hot
def draw(walk: Walk, bound: int) -> int:
    """Draw a number below a bound."""
    walk.counts[_RANDOM] = (walk.counts[_RANDOM] * 1_103_515_245 + 12_345) % 2_147_483_648
    return int((walk.counts[_RANDOM] // 65_536) % bound)


@hot
def trace(links: Links, paths: Paths, walk: Walk) -> int:
    """Follow a critical path from the first op to the end of a rank; return its length."""
    code, length = paths.line[0], 0
    while code >= 0:
        walk.path[length] = code
        length += 1
        row, place, following = links.rows[code], paths.places[code] + 1, -1
        left = paths.tails[code] - links.duration[row] - TOLERANCE
        if rest(links, paths, place, links.ranks[row]) >= left:
            if place == links.offsets[links.ranks[row] + 1]:
                return length
            following = paths.order[place]
        for index in range(2 * row, 2 * row + 2):
            after = code + links.after[index]
            is_critical = after != code and paths.tails[after] + links.lags[index] >= left
            if is_critical and (following < 0 or draw(walk, 2) == 0):
                following = after
        code = following
    return length


@hot
def choose(links: Links, paths: Paths, walk: Walk, length: int) -> tuple[int, int]:
    """Choose which place on a critical path goes where; -1 if nothing may move."""
    best, source, target, num_equal = _NEVER, -1, -1, 0
    begin = 0
    while begin < length:
        end = begin
        while end + 1 < length and follow(links, paths, walk.path[end], walk.path[end + 1]):
            end += 1
        first, last = paths.places[walk.path[begin]], paths.places[walk.path[end]]
        for way in range(4):
            for step in range(1, min(last - first, _REACH) + 1):
                # To the end or the front of the run, then its first op back and its last forth.
                here, there = last - step, last
                if way == 1:
                    here, there = first + step, first
                elif way == 2:
                    here, there = first, first + step
                elif way == 3:
                    here, there = last, last - step
                if way >= 2 and step == last - first:
                    continue
                if not may_move(links, paths, here, there):
                    continue
                value = estimate(links, paths, walk.heads, here, there, best)
                if value > best + TOLERANCE or (
                    value >= walk.values[1] - TOLERANCE and is_tabu(paths, walk, here, there)
                ):
                    continue
                num_equal = 1 if value < best - TOLERANCE else num_equal + 1
                best = min(best, value)
                if draw(walk, num_equal) == 0:
                    source, target = here, there
        begin = end + 1
    return source, target


@hot
def follow(links: Links, paths: Paths, one: int, other: int) -> bool:
    """Say whether two ops are next to each other on a rank."""
    is_same = links.ranks[links.rows[one]] == links.ranks[links.rows[other]]
    return bool(is_same and paths.places[other] == paths.places[one] + 1)


@hot
def may_move(links: Links, paths: Paths, source: int, target: int) -> bool:
    """Say whether an op may go from one place of its rank to another.

    The rules: a rank's first op stays, microbatches of a stage stay in order, no circle is closed
    and the memory suffices.
    """
    code, other = paths.order[source], paths.order[target]
    row = links.rows[code]
    change, limit = links.change[row], links.limits[links.ranks[row]]
    if min(source, target) <= links.offsets[links.ranks[row]]:
        return False
    if target > source:
        for index in range(2 * row, 2 * row + 2):
            after = code + links.after[index]
            # Any path from it to the other op would make its tail the longer one.
            if after != code and paths.tails[after] >= paths.tails[other]:
                return False
        for place in range(source + 1, target + 1):
            if links.rows[paths.order[place]] == row:
                return False
            if paths.memory[place] - change > limit:
                return False
        return True
    before = code + links.before[row]
    if before == other or (before != code and paths.heads[before] >= end_of(links, paths, other)):
        return False
    for place in range(target, source):
        if links.rows[paths.order[place]] == row:
            return False
        if paths.memory[place - 1] + change > limit:
            return False
    return bool(paths.memory[source - 1] + change <= limit)


@hot
def moved(paths: Paths, source: int, target: int, place: int) -> int:
    """Say which op would be at a place between the two after a move."""
    if place == target:
        return int(paths.order[source])
    if target > source:
        return int(paths.order[place + 1])
    return int(paths.order[place - 1])


@hot
def estimate(
    links: Links, paths: Paths, heads: Floats, source: int, target: int, enough: float
) -> float:
    """Estimate the longest path through the ops that a move shifts; stop when it is above enough.

    Their heads and tails are worked out as if those of all other ops stayed.
    """
    first, last = min(source, target), max(source, target)
    free = end_of(links, paths, paths.order[first - 1])
    for place in range(first, last + 1):
        code = moved(paths, source, target, place)
        heads[place] = max(free, arrival(links, paths, code, links.rows[code]))
        free = heads[place] + links.duration[links.rows[code]]
    rank = links.ranks[links.rows[paths.order[first]]]
    longest, tail = 0.0, rest(links, paths, last + 1, rank)
    for place in range(last, first - 1, -1):
        code = moved(paths, source, target, place)
        row = links.rows[code]
        tail = max(tail, departure(links, paths, code, row)) + links.duration[row]
        longest = max(longest, heads[place] + tail)
        if longest > enough + TOLERANCE:
            return float(longest)
    return float(longest)


@hot
def pair(paths: Paths, one: int, other: int) -> int:
    """Hash two ops, the first of them before the second."""
    return (one * len(paths.order) + other) % _TABU_SIZE


@hot
def is_tabu(paths: Paths, walk: Walk, source: int, target: int) -> bool:
    """Say whether a move would reverse what is tabu."""
    code, step = paths.order[source], 1
    if target < source:
        step = -1
    place = source
    while place != target:
        place += step
        other = paths.order[place]
        key = pair(paths, other, code)
        if target < source:
            key = pair(paths, code, other)
        if walk.tabu[key] > walk.counts[_MOVES]:
            return True
    return False


@hot
def forbid_return(paths: Paths, walk: Walk, source: int, target: int) -> None:
    """Make it tabu for a while to bring the pairs that a move reverses back into their order."""
    code, step = paths.order[source], 1
    if target < source:
        step = -1
    until = walk.counts[_MOVES] + _SHORTEST_TENURE + draw(walk, _TENURES)
    place = source
    while place != target:
        place += step
        other = paths.order[place]
        key = pair(paths, code, other)
        if target < source:
            key = pair(paths, other, code)
        walk.tabu[key] = until
