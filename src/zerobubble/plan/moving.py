"""Does a step get shorter when layers move between stages, and the schedule follows?

Partition and schedule are improved in turn, as in AdaPtis (arXiv 2509.23722): with the order of the
ops kept, layers move away from the rank that is busy for longest, one at a time, with all
boundaries in between shifting along; then a schedule is searched for the new stages. A step of
either kind is only taken if the simulated step becomes shorter, or needs less memory that is not
there.
"""

from collections.abc import Callable

from zerobubble.plan.cuts import moves
from zerobubble.plan.pace import Pace
from zerobubble.plan.task import TOLERANCE, Candidate, Task, judge

# Gives the best schedule for a microbatch size and a partition.
Reschedule = Callable[[Candidate], Candidate | None]

_MOST_ROUNDS = 6
# How many ops are timed while layers move, and how many partitions at most.
_OPS, _TRIES = 40_000_000, 3_000


def improve(task: Task, candidate: Candidate, reschedule: Reschedule) -> Candidate:
    """Move layers and search schedules in turn until neither helps; never worse than given."""
    for _ in range(_MOST_ROUNDS):
        moved = move_layers(task, candidate)
        if moved is candidate:
            break
        found = reschedule(moved)
        candidate = found if found is not None and found.is_better(moved) else moved
    return candidate


def move_layers(task: Task, candidate: Candidate) -> Candidate:
    """Move one layer after the other, each time the one that helps most, order of ops kept."""
    pace = Pace(candidate.schedule)
    tries = min(_TRIES, _OPS // candidate.schedule.num_ops)
    seen = {candidate.layers_per_stage}
    while True:
        best = candidate
        for lengths in _neighbours(task, candidate):
            if lengths in seen or tries <= 0:
                continue
            seen.add(lengths)
            if _is_hopeless(task, best, lengths):
                continue
            tries -= 1
            found = judge(task, candidate.microbatch_size, lengths, pace)
            best = found if found.is_better(best) else best
        if best is candidate:
            return candidate
        candidate = best


def _neighbours(task: Task, candidate: Candidate) -> list[tuple[int, ...]]:
    """List what moving a layer from or to the stages of the busiest ranks, or next door, gives."""
    lengths, placement = candidate.layers_per_stage, candidate.placement
    tables = task.tables(candidate.microbatch_size)
    loads = task.sums(tables.work, lengths, placement)
    loads *= task.num_microbatches(candidate.microbatch_size)
    loads += task.sums(tables.optimizer, lengths, placement)
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
    loads += task.sums(tables.optimizer, layers_per_stage, placement)
    least = float(loads.max()) + task.profile.step_overhead_ms
    return least > best.step_ms * (1 + TOLERANCE)
