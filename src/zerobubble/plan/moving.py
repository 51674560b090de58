"""Does a step get shorter when layers move between stages, and the schedule follows?

Partition and schedule are improved in turn, as in AdaPtis (arXiv 2509.23722): with the order of the
ops kept, layers move away from the rank that is busy for longest, one at a time, with all
boundaries in between shifting along; then a schedule is searched for the new stages. Where no move
helps the kept order, a schedule is searched for those that harm it least. A change of either kind
is only made if the simulated step becomes shorter, or needs less memory that is not there.
"""

from collections.abc import Callable

from zerobubble.plan.cuts import moves
from zerobubble.plan.pace import Pace
from zerobubble.plan.task import TOLERANCE, Candidate, Task, judge

# Gives the best schedule for a microbatch size and a partition.
Reschedule = Callable[[Candidate], Candidate | None]

_MOST_ROUNDS = 4
# How many ops are timed while layers move, and how many partitions at most.
_OPS, _TRIES = 40_000_000, 3_000
# After how many moves that do not help a schedule is searched; fewer for more ops in all.
_NEAR_MISSES, _NEAR_OPS = 8, 40_000


def improve(task: Task, candidate: Candidate, reschedule: Reschedule) -> Candidate:
    """Move layers and search schedules in turn until neither helps; never worse than given."""
    for _ in range(_MOST_ROUNDS):
        moved = move_layers(task, candidate)
        if moved is candidate:
            break
        candidate = _better(moved, reschedule(moved))
    return candidate


def refine(task: Task, candidate: Candidate, reschedule: Reschedule) -> Candidate:
    """Search schedules for the moves that harm a candidate least; never worse than given."""
    best = candidate
    for near in _near_misses(task, candidate):
        best = _better(best, reschedule(near))
    return best if best is candidate else improve(task, best, reschedule)


def _better(one: Candidate, other: Candidate | None) -> Candidate:
    return other if other is not None and other.is_better(one) else one


def move_layers(task: Task, candidate: Candidate) -> Candidate:
    """Move one layer after the other, each time the one that helps most, order of ops kept."""
    tries = min(_TRIES, _OPS // candidate.schedule.num_ops)
    pace = Pace(candidate.schedule)
    while tries > 0:
        options = _moved(task, candidate, pace, tries)
        tries -= len(options)
        best = candidate
        for option in options:
            best = _better(best, option)
        if best is candidate:
            break
        candidate = best
    return candidate


def _near_misses(task: Task, candidate: Candidate) -> list[Candidate]:
    """Give the moves that make a step least longer with the order of ops kept."""
    number = min(_NEAR_MISSES, _NEAR_OPS // candidate.schedule.num_ops)
    options = _moved(task, candidate, Pace(candidate.schedule), _TRIES) if number else []
    return sorted(options, key=lambda each: (each.excess_bytes, each.step_ms))[:number]


def _moved(task: Task, candidate: Candidate, pace: Pace, most: int) -> list[Candidate]:
    """Judge all moves that may be better than a candidate, or so many."""
    options = [
        lengths
        for lengths in _neighbours(task, candidate)
        if not _is_hopeless(task, candidate, lengths)
    ]
    return [judge(task, candidate.microbatch_size, each, pace) for each in options[:most]]


def _neighbours(task: Task, candidate: Candidate) -> list[tuple[int, ...]]:
    """List what moving a layer from or to the stages of the busiest ranks, or next door, gives."""
    lengths, placement = candidate.layers_per_stage, candidate.placement
    tables = task.tables(candidate.microbatch_size)
    loads = task.sums(tables.work, lengths, placement)
    loads *= task.num_microbatches(candidate.microbatch_size)
    loads += task.optimizer_ms(candidate.microbatch_size, lengths, placement)
    held = task.sums(tables.least_bytes, lengths, placement)
    tight = int((held - task.memory).argmax())
    givers = {
        stage
        for rank in dict.fromkeys((int(loads.argmax()), candidate.busiest, tight))
        for stage in placement.stages_of(rank)
    }
    every = range(placement.num_stages)
    found = list(moves(lengths, sorted(givers), every))
    for stage in every[1:]:
        found += [*moves(lengths, [stage - 1], [stage]), *moves(lengths, [stage], [stage - 1])]
    return list(dict.fromkeys(found))


def _is_hopeless(task: Task, best: Candidate, layers_per_stage: tuple[int, ...]) -> bool:
    """Say whether a partition cannot be better, by the memory or the work of a rank alone."""
    tables, placement = task.tables(best.microbatch_size), best.placement
    held = task.sums(tables.least_bytes, layers_per_stage, placement)
    if float((held - task.memory).max()) > best.excess_bytes + TOLERANCE * float(held.max()):
        return True
    if not best.fits:
        return False
    loads = task.sums(tables.least_work, layers_per_stage, placement)
    loads *= task.num_microbatches(best.microbatch_size)
    loads += task.optimizer_ms(best.microbatch_size, layers_per_stage, placement)
    least = float(loads.max()) + task.profile.step_overhead_ms
    return least > best.step_ms * (1 + TOLERANCE)
