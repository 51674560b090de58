"""How does a block that repeats for every microbatch become a schedule?"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import Kind, Op, Placement, Schedule
from zerobubble.schedules.timetable import LENGTHS, Timetable

Block = Mapping[Kind, Sequence[int]]


def from_building_block(
    placement: Placement,
    num_microbatches: int,
    *,
    forward: Sequence[int],
    backward: Sequence[int],
    weight: Sequence[int] | None = None,
    fused: bool = False,
    period: int | None = None,
    name: str = "building-block",
) -> Schedule:
    """Repeat a block for every microbatch, fill its waits, and shorten both ends.

    The block says in which slot F and B of each stage start for microbatch 0; microbatch i does
    the same ``i * period`` slots later. Life times in the block decide the memory, and no step
    raises it above the block's: idle slots are dropped (*squeeze*), and at the start and the end,
    where the pattern leaves gaps, ops move forward into them (*reorder*). The order does not
    depend on costs. Method: arXiv 2405.15362, sections 2 and 3.

    Args:
        placement: which rank holds which stage.
        num_microbatches: how often the block repeats.
        forward: start slot of F for each stage.
        backward: start slot of B (or BW) for each stage.
        weight: start slot of W for each stage; by default W takes the first free slot after B.
        fused: whether the backward is one BW of two slots instead of B and W.
        period: slots from one microbatch to the next; by default three for each stage of the
            rank that holds most.
        name: of the schedule.

    Raises:
        UsageError: a list has not one slot for each stage, or there are no microbatches.
        ScheduleError: two ops of a rank start in the same slot of the period, an op starts before
            its input is there, or the period is too short for the work of a rank.

    V-Min, the V with the least memory, on four ranks:

    >>> from zerobubble import Costs, from_building_block, simulate
    >>> from zerobubble.ir import wave
    >>> from zerobubble.view.text import draw
    >>> block = {"forward": range(8), "backward": range(15, 7, -1)}
    >>> schedule = from_building_block(wave(4, 2), 3, **block)
    >>> print(draw(simulate(schedule, Costs.uniform(8)), width=100))
    rank 0 |F0|F1|F2|...........|f0|b0|w0|f1|b1|........|B0|w1|W0|..|f2|b2|B1|w2|W1|........|B2|W2|
    rank 1    |F0|F1|........|f0|..|f1|b0|w0|F2|.....|B0|b1|W0|w1|f2|..|B1|b2|W1|w2|.....|B2|W2|
    rank 2       |F0|F1|..|f0|..|f1|.....|b0|w0|F2|B0|W0|..|b1|f2|w1|B1|W1|..|b2|w2|..|B2|W2|
    rank 3          |F0|f0|F1|f1|...........|b0|B0|w0|W0|F2|f2|b1|B1|w1|W1|.....|b2|B2|w2|W2|
    F forward, B input gradient, W weight gradient, . idle, F0 f0 stages of a rank in order
    """
    if num_microbatches < 1:
        raise UsageError(f"{name}: microbatches must be at least 1, not {num_microbatches}")
    if weight is not None and fused:
        raise UsageError(f"{name}: a fused backward has no slots for W")
    block: dict[Kind, Sequence[int]] = {Kind.F: forward, Kind.BW if fused else Kind.B: backward}
    if weight is not None:
        block[Kind.W] = weight
    if period is None:
        period = 3 * max(len(placement.stages_of(rank)) for rank in range(placement.num_ranks))
    _check(name, placement, block, period)
    slots = {
        Op(kind, stage, i): start + i * period
        for kind, starts in block.items()
        for stage, start in enumerate(starts)
        for i in range(num_microbatches)
    }
    timetable = Timetable(name, placement, num_microbatches, slots)
    _start_early(timetable)
    timetable.squeeze()
    _drain_early(timetable)
    return timetable.schedule()


def _start_early(timetable: Timetable) -> None:
    """Move ops of the warm-up forward into idle slots, as far as the peak memory does not grow.

    From the first B of the first stage on, W fills the waits; a fused backward leaves them there
    too, so then all ops may move.
    """
    end = timetable.first_turn()
    held = [timetable.memory(rank) for rank in timetable.ranks]
    peak = max(int(memory.max()) for memory in held)
    for rank, code in timetable.in_order():
        kind, slot, freed = timetable.kind(code), timetable.start(code), timetable.end(code)
        if end is not None and slot >= end:
            break
        earliest = timetable.earliest(code)
        if kind == Kind.F:
            full = np.flatnonzero(held[rank][earliest:slot] >= peak)
            earliest += int(full[-1]) + 1 if full.size else 0
        timetable.move(rank, code, earliest)
        if kind == Kind.F:
            held[rank][timetable.start(code) : slot] += 1
        elif kind != Kind.B:
            held[rank][timetable.end(code) : freed] -= 1


def _drain_early(timetable: Timetable) -> None:
    """After a rank's last F, run B as early as possible and W in the slots that are left.

    Memory only falls there, so W may wait.
    """
    first = [timetable.last_forward(rank) + 1 for rank in timetable.ranks]
    order = [(rank, c) for rank, c in timetable.in_order() if timetable.start(c) >= first[rank]]
    weights: list[list[int]] = [[] for _ in timetable.ranks]
    for rank, code in order:
        if timetable.kind(code) == Kind.W:
            weights[rank].append(code)
    for rank in timetable.ranks:
        timetable.take_out(rank, weights[rank])
    for rank, code in order:
        if timetable.kind(code) != Kind.W:
            timetable.move(rank, code, max(timetable.earliest(code), first[rank]))
    for rank in timetable.ranks:
        timetable.fill(rank, weights[rank])


def _check(name: str, placement: Placement, block: Block, period: int) -> None:
    for kind, starts in block.items():
        if len(starts) != placement.num_stages:
            raise UsageError(
                f"{name}: {len(starts)} slots of {kind.name} for {placement.num_stages} stages"
            )
    if min(block[Kind.F]) < 0:
        raise UsageError(f"{name}: slots are counted from 0, not {min(block[Kind.F])}")
    _check_inputs(name, block)
    _check_slots(name, placement, block, period)


def _check_inputs(name: str, block: Block) -> None:
    """Every op of the block starts after its input ends."""
    last = len(block[Kind.F]) - 1
    backward = Kind.BW if Kind.BW in block else Kind.B
    for stage in range(last + 1):
        needs = {(Kind.F, stage): (Kind.F, stage - 1)} if stage else {}
        needs[backward, stage] = (Kind.F, stage) if stage == last else (backward, stage + 1)
        if Kind.W in block:
            needs[Kind.W, stage] = (Kind.B, stage)
        for (kind, _), (needed, source) in needs.items():
            end = block[needed][source] + LENGTHS[needed]
            if block[kind][stage] < end:
                raise ScheduleError(
                    f"{name}: {kind.name} of stage {stage} starts in slot {block[kind][stage]}, "
                    f"before {needed.name} of stage {source} ends: start it in slot {end} or later"
                )


def _check_slots(name: str, placement: Placement, block: Block, period: int) -> None:
    """No two ops of a rank take the same slot of the period, and W finds room."""
    for rank in range(placement.num_ranks):
        stages = placement.stages_of(rank)
        taken: dict[int, str] = {}
        if period < 3 * len(stages):
            raise ScheduleError(
                f"{name}: rank {rank} needs {3 * len(stages)} slots for each microbatch, but the "
                f"period is {period}: make it longer"
            )
        for kind, stage in product(block, stages):
            op = f"{kind.name} of stage {stage}"
            for slot in range(block[kind][stage], block[kind][stage] + LENGTHS[kind]):
                other = taken.setdefault(slot % period, op)
                if other != op:
                    raise ScheduleError(
                        f"{name}: rank {rank} has {other} and {op} in slot {slot % period} of the "
                        "period: move one of them"
                    )
