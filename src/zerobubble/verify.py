"""Which rules must a schedule obey? One small function for each rule.

A rule yields violations; later rules rely on earlier ones, so checking stops after the first rule
that is broken. ``RULES`` is the specification: whatever passes it simulates, lowers and runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.graph import places, run_order
from zerobubble.ir import Codes, Kind, Schedule


@dataclass(frozen=True)
class Violation:
    """One broken rule: where, what, and how to mend it."""

    rule: str
    rank: int | None
    problem: str
    fix: str

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}: "
        return f"{where}{self.problem} (rule {self.rule}): {self.fix}"


@dataclass(frozen=True)
class Subject:
    """What the rules look at: a schedule, its costs, and tables indexed by op code."""

    schedule: Schedule
    costs: Costs
    memory: Floats | None

    @cached_property
    def counts(self) -> Codes:
        """How many times each op runs, on any rank."""
        codes, _ = self.schedule.flat()
        return np.bincount(codes, minlength=self.schedule.num_codes)

    @cached_property
    def positions(self) -> Codes:
        """Index of each op in the order of its rank; -1 where it does not run."""
        return places(self.schedule)[1]

    @cached_property
    def backward_positions(self) -> tuple[Codes, Codes]:
        """Positions of the input gradient and of the weight gradient: (stage, microbatch) each."""
        positions = self.schedule.by_kind(self.positions)
        fused = positions[Kind.BW]
        return np.where(fused >= 0, fused, positions[Kind.B]), np.where(
            fused >= 0, fused, positions[Kind.W]
        )

    def memory_after_each_op(self, rank: int) -> Floats:
        """Running sum of the activation memory of a rank, op by op."""
        running: Floats = np.cumsum(self.costs.memory_changes_of(self.schedule, rank))
        return running


Rule = Callable[[Subject], Iterator[Violation]]


def op_on_its_rank(subject: Subject) -> Iterator[Violation]:
    """Every op runs on the rank that holds its stage."""
    schedule = subject.schedule
    holders = np.asarray(schedule.placement.stage_to_rank)
    for rank, order in enumerate(schedule.orders):
        _, stages, _ = schedule.fields(order)
        for index in np.flatnonzero(holders[stages] != rank).tolist():
            op = schedule.op(order[index])
            holder = schedule.placement.stage_to_rank[op.stage]
            fix = f"move op {index} to rank {holder}"
            yield Violation("op-on-its-rank", rank, f"{op} is held by rank {holder}", fix)


def every_op_once(subject: Subject) -> Iterator[Violation]:
    """Every stage and microbatch has one F and either one B and one W, or one BW."""
    schedule, counts = subject.schedule, subject.schedule.by_kind(subject.counts)
    backward = counts[Kind.B] + counts[Kind.W] + counts[Kind.BW]
    split = (counts[Kind.B] > 0) | (counts[Kind.W] > 0)
    for code in np.flatnonzero(subject.counts > 1).tolist():
        op = schedule.op(code)
        rank = schedule.placement.stage_to_rank[op.stage]
        where = np.flatnonzero(schedule.orders[rank] == code).tolist()
        fix = f"delete all but one of ops {', '.join(map(str, where))}"
        yield Violation("every-op-once", rank, f"{op} runs {subject.counts[code]} times", fix)
    wanted = {
        Kind.F: counts[Kind.F] == 0,
        Kind.B: split & (counts[Kind.B] == 0),
        Kind.W: split & (counts[Kind.W] == 0),
        Kind.BW: backward == 0,
    }
    for kind, is_missing in wanted.items():
        for stage, microbatch in np.argwhere(is_missing).tolist():
            name = f"{kind.name}{microbatch} of stage {stage}"
            rank = schedule.placement.stage_to_rank[stage]
            yield Violation("every-op-once", rank, f"{name} is missing", "add it")
    for stage, microbatch in np.argwhere(split & (counts[Kind.BW] > 0)).tolist():
        rank = schedule.placement.stage_to_rank[stage]
        problem = f"stage {stage} has BW{microbatch} and B or W of the same microbatch"
        yield Violation("every-op-once", rank, problem, "keep BW, or B and W")


def input_after_forward(subject: Subject) -> Iterator[Violation]:
    """F runs before B (or BW) of the same stage and microbatch."""
    forward = subject.schedule.by_kind(subject.positions)[Kind.F]
    backward, _ = subject.backward_positions
    return _swapped(subject, "input-after-forward", forward, backward)


def weight_after_input(subject: Subject) -> Iterator[Violation]:
    """B runs before W of the same stage and microbatch."""
    backward, weight = subject.backward_positions
    return _swapped(subject, "weight-after-input", backward, weight)


def one_way_back(subject: Subject) -> Iterator[Violation]:
    """A microbatch of a stage that is offloaded is loaded; none is both offloaded and run again."""
    schedule = subject.schedule
    offloaded, loaded, again = map(schedule.has, (Kind.O, Kind.L, Kind.R))
    cases = (
        (offloaded & ~loaded, "has O{i} but no L{i}", "add L{i}, or delete O{i}"),
        (loaded & ~offloaded, "has L{i} but no O{i}", "add O{i}, or delete L{i}"),
        (offloaded & again, "has both O{i} and R{i}", "keep O{i} and L{i}, or R{i}"),
    )
    for is_wrong, problem, fix in cases:
        for stage, i in np.argwhere(is_wrong).tolist():
            rank = schedule.placement.stage_to_rank[stage]
            what = f"stage {stage} {problem.format(i=i)}"
            yield Violation("one-way-back", rank, what, fix.format(i=i))


def back_before_backward(subject: Subject) -> Iterator[Violation]:
    """What a B needs is there: F before O and R, O before L, L and R before B (or BW)."""
    schedule = subject.schedule
    if schedule.num_kinds <= Kind.R:
        return
    positions = schedule.by_kind(subject.positions)
    backward, _ = subject.backward_positions
    end = len(subject.counts)  # after all others
    for later, earlier in ((Kind.O, Kind.F), (Kind.L, Kind.O), (Kind.R, Kind.F)):
        there = np.where(schedule.has(later), positions[later], end)
        yield from _swapped(subject, "back-before-backward", positions[earlier], there)
    for kind in (Kind.L, Kind.R):
        yield from _swapped(subject, "back-before-backward", positions[kind], backward)


def _swapped(subject: Subject, rule: str, earlier: Codes, later: Codes) -> Iterator[Violation]:
    """Yield every (stage, microbatch) whose later op runs before the earlier one."""
    schedule = subject.schedule
    for stage, microbatch in np.argwhere(earlier > later).tolist():
        rank = schedule.placement.stage_to_rank[stage]
        first, second = int(later[stage, microbatch]), int(earlier[stage, microbatch])
        late, early = (schedule.op(schedule.orders[rank][i]) for i in (first, second))
        problem = f"{late} runs before {early.kind.name}{early.microbatch}"
        yield Violation(rule, rank, problem, f"swap ops {first} and {second}")


def microbatches_in_order(subject: Subject) -> Iterator[Violation]:
    """The microbatches of a stage go in order, in forward, input and weight gradient alike."""
    schedule = subject.schedule
    forward = subject.schedule.by_kind(subject.positions)[Kind.F]
    for positions in (forward, *subject.backward_positions):
        for stage, microbatch in np.argwhere(np.diff(positions, axis=1) < 0).tolist():
            rank = schedule.placement.stage_to_rank[stage]
            early, late = positions[stage, microbatch + 1], positions[stage, microbatch]
            first, second = (schedule.op(schedule.orders[rank][i]) for i in (early, late))
            problem = f"{first} runs before {second.kind.name}{second.microbatch}"
            yield Violation("microbatches-in-order", rank, problem, f"swap ops {early} and {late}")


def no_cycle(subject: Subject) -> Iterator[Violation]:
    """The data dependencies and the rank orders together have no cycle, so the ranks can finish."""
    try:
        run_order(subject.schedule)
    except ScheduleError as error:
        problem = str(error).removeprefix(f"{subject.schedule.name}: ")
        what, _, fix = problem.partition(" (rule no-cycle): ")
        yield Violation("no-cycle", None, what, fix)


def memory_returns_to_zero(subject: Subject) -> Iterator[Violation]:
    """What the forwards of a rank allocate, its backwards free."""
    for rank, order in enumerate(subject.schedule.orders):
        running = subject.memory_after_each_op(rank)
        if len(order) and abs(running[-1]) > TOLERANCE * max(1.0, running.max()):
            problem = f"{running[-1]:g} of activation memory is left after the last op"
            yield Violation("memory-returns-to-zero", rank, problem, "add the missing B or W")


def memory_limit(subject: Subject) -> Iterator[Violation]:
    """The activation memory of a rank never exceeds its limit, where one is given."""
    if subject.memory is None:
        return
    for rank, (order, limit) in enumerate(
        zip(subject.schedule.orders, subject.memory.tolist(), strict=True)
    ):
        running = subject.memory_after_each_op(rank)
        over = np.flatnonzero(running > limit * (1 + TOLERANCE))
        if over.size:
            index = int(over[0])
            problem = (
                f"{subject.schedule.op(order[index])} (op {index}) raises activation memory to "
                f"{running[index]:g}, over the limit of {limit:g}"
            )
            earlier = "a backward or an O" if subject.schedule.has_copies else "a backward"
            later = ", or an L behind it" if subject.schedule.has_copies else ""
            fix = f"run {earlier} before it{later}, or allow {running.max():g}"
            yield Violation("memory-limit", rank, problem, fix)


RULES: tuple[Rule, ...] = (
    op_on_its_rank,
    every_op_once,
    input_after_forward,
    weight_after_input,
    one_way_back,
    back_before_backward,
    microbatches_in_order,
    no_cycle,
    memory_returns_to_zero,
    memory_limit,
)


def violations(
    schedule: Schedule, costs: Costs | None = None, memory: ArrayLike | None = None
) -> list[Violation]:
    """List the violations of the first rule that a schedule breaks; none if it obeys all.

    Args:
        schedule: what to check.
        costs: activation sizes for the memory rules; by default each rank's stages share 1.
        memory: limit for every rank, or one for each, in the unit of the activation sizes.

    Raises:
        UsageError: the costs or limits do not fit the schedule's numbers of stages and ranks.
    """
    costs = costs or Costs.of_ranks(schedule.placement)
    costs.require_stages(schedule.num_stages, schedule.name)
    limits = None if memory is None else limits_of_ranks(memory, schedule.num_ranks)
    subject = Subject(schedule, costs, limits)
    return next((found for rule in RULES if (found := list(rule(subject)))), [])


def verify(schedule: Schedule, costs: Costs | None = None, memory: ArrayLike | None = None) -> None:
    """Check that a schedule obeys every rule; arguments as for ``violations``.

    Raises:
        ScheduleError: naming rank, op, rule and fix of the first violation.

    >>> from zerobubble.ir import B, F, Schedule, W, linear
    >>> verify(Schedule.from_ops("late", linear(1), 1, [[F(0, 0), W(0, 0), B(0, 0)]]))
    Traceback (most recent call last):
    zerobubble.errors.ScheduleError: late: rank 0: W0 of stage 0 runs before B0 (rule weight-after-input): swap ops 1 and 2
    """  # noqa: E501
    found = violations(schedule, costs, memory)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ScheduleError(f"{schedule.name}: {found[0]}{more}")


def limits_of_ranks(memory: ArrayLike, num_ranks: int) -> Floats:
    """Give every rank its memory limit, from one number for all or one for each.

    Raises:
        UsageError: a limit is negative or nan, or there are too few or too many.
    """
    try:
        given = np.asarray(memory)
        limits: Floats = given.astype(np.float64)
        leaves = [memory] if given.ndim == 0 else list(memory)  # type: ignore[arg-type]
        is_right = not any(isinstance(each, bool | str | bytes | np.bool_) for each in leaves)
    except (TypeError, ValueError, OverflowError):
        is_right = False
    if not is_right or given.dtype.kind not in "iufO":
        raise UsageError(f"memory must be a number, or one for each rank: {memory!r}")
    if not (limits >= 0).all():
        raise UsageError(f"memory limits must not be negative or nan: {limits}")
    if limits.ndim == 0:
        return np.full(num_ranks, limits)
    if limits.shape != (num_ranks,):
        raise UsageError(f"{limits.size} memory limits given for {num_ranks} ranks")
    return limits
