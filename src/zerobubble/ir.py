"""What is a schedule? Op, Placement and Schedule: the vocabulary, read this first.

An op is one kind of work (forward, input gradient, weight gradient, or both gradients at once) of
one stage and one microbatch. A placement says which rank holds which stage. A schedule is a
placement and the order in which every rank runs its ops; it holds no times and no communication.

Between its forward and its backward a microbatch may leave the device: ``O`` copies what its F
holds to the host, ``L`` copies it back, both beside the compute. Or F holds nothing but the input
of its stage, and ``R`` runs it again before the backward. In the order of a rank, O stands where
the memory is free again, and L where it is taken again: the compute passes O when the copy has
ended, and a copy back begins when the compute reaches L. So the order alone says how much memory
is held after each op, however fast the copies are (arXiv 2503.01328, PipeOffload).

Sizes reach 25 million ops, so a schedule keeps each rank's order as an array of op codes
(kind, stage and microbatch in one integer) and makes ``Op`` objects only when asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.errors import ScheduleError, UsageError

Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Kind(IntEnum):
    """The kinds of op; F, B and W are named as in Zero Bubble (arXiv 2401.10241, section 2)."""

    F = 0
    B = 1
    W = 2
    BW = 3
    O = 4  # noqa: E741
    L = 5
    R = 6


# A schedule without O, L and R needs no tables for them.
_NUM_BASIC_KINDS = 4


class Op(NamedTuple):
    """One kind of work of one stage and one microbatch.

    >>> str(Op(Kind.W, stage=2, microbatch=3))
    'W3 of stage 2'
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind.name}{self.microbatch} of stage {self.stage}"


def F(stage: int, microbatch: int) -> Op:
    """Name the forward of a stage for a microbatch."""
    return Op(Kind.F, stage, microbatch)


def B(stage: int, microbatch: int) -> Op:
    """Name the gradient of a stage's input for a microbatch."""
    return Op(Kind.B, stage, microbatch)


def W(stage: int, microbatch: int) -> Op:
    """Name the gradient of a stage's parameters for a microbatch."""
    return Op(Kind.W, stage, microbatch)


def BW(stage: int, microbatch: int) -> Op:
    """Name both gradients of a stage for a microbatch, computed at once."""
    return Op(Kind.BW, stage, microbatch)


def O(stage: int, microbatch: int) -> Op:  # noqa: E743
    """Name the offload to the host of what a stage holds for a microbatch."""
    return Op(Kind.O, stage, microbatch)


def L(stage: int, microbatch: int) -> Op:
    """Name the load of what was offloaded."""
    return Op(Kind.L, stage, microbatch)


def R(stage: int, microbatch: int) -> Op:
    """Name the second forward of a stage for a microbatch, whose first one held only its input."""
    return Op(Kind.R, stage, microbatch)


@dataclass(frozen=True)
class Placement:
    """Which rank holds which stage; stages are numbered in forward order.

    Ranks may hold different numbers of stages, but each holds at least one.

    Raises:
        UsageError: a rank between 0 and the largest one holds no stage.

    >>> Placement((0, 1, 1, 0)).stages_of(1)
    (1, 2)
    """

    stage_to_rank: tuple[int, ...]

    def __post_init__(self) -> None:
        used = set(self.stage_to_rank)
        if not used or used != set(range(len(used))):
            raise UsageError(
                f"placement {list(self.stage_to_rank)} must name every rank from 0 to the largest "
                "at least once"
            )

    @property
    def num_stages(self) -> int:
        """Number of stages of the model."""
        return len(self.stage_to_rank)

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks of the pipeline."""
        return max(self.stage_to_rank) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """List the stages that a rank holds, in forward order."""
        return tuple(s for s, holder in enumerate(self.stage_to_rank) if holder == rank)

    def __str__(self) -> str:
        ranks, stages = self.num_ranks, self.num_stages
        if stages % ranks == 0:
            rounds = stages // ranks
            if self == linear(ranks):
                return "linear"
            if self == looped(ranks, rounds):
                return f"looped:{rounds}"
            if self == wave(ranks, rounds):
                return "v" if rounds == 2 else f"wave:{rounds}"
        return ",".join(map(str, self.stage_to_rank))


def linear(num_ranks: int) -> Placement:
    """Place one stage on each rank, in order.

    >>> linear(3).stage_to_rank
    (0, 1, 2)
    """
    return Placement(tuple(range(num_ranks)))


def looped(num_ranks: int, v: int) -> Placement:
    """Place ``v`` stages on each rank, going round the ranks ``v`` times (interleaved).

    >>> looped(2, v=2).stage_to_rank
    (0, 1, 0, 1)
    """
    return Placement(tuple(s % num_ranks for s in range(num_ranks * v)))


def wave(num_ranks: int, v: int) -> Placement:
    """Place ``v`` stages on each rank, going down and up the ranks in turn; V is ``v=2``.

    >>> wave(2, v=2).stage_to_rank
    (0, 1, 1, 0)
    """
    down, up = tuple(range(num_ranks)), tuple(reversed(range(num_ranks)))
    return Placement(tuple(r for turn in range(v) for r in (up if turn % 2 else down)))


# A placement by name with more stages than this is taken for a slip of the pen.
_MOST_STAGES = 2**20


def placement_named(name: str, num_ranks: int) -> Placement:
    """Find the placement that a name stands for: what ``str`` gives, for so many ranks.

    Raises:
        UsageError: the name is unknown, or a list of ranks names others than asked for.

    >>> placement_named("v", num_ranks=2) == placement_named("0,1,1,0", num_ranks=2)
    True
    """
    kind, _, count = name.partition(":")
    shapes = {"looped": looped, "wave": wave}
    if name in ("linear", "v"):
        return linear(num_ranks) if name == "linear" else v_shape(num_ranks)
    if kind in shapes and count.isdecimal() and 0 < int(count) * num_ranks <= _MOST_STAGES:
        return shapes[kind](num_ranks, int(count))
    if all(rank.isdecimal() for rank in name.split(",")):
        placement = Placement(tuple(map(int, name.split(","))))
        if placement.num_ranks == num_ranks:
            return placement
    raise UsageError(
        f"placement {name!r} is not known for {num_ranks} ranks: use linear, v, looped:2, wave:4, "
        "or the rank of each stage as in 0,1,1,0"
    )


def v_shape(num_ranks: int) -> Placement:
    """Place two stages on each rank, going down the ranks and back up: ``wave(num_ranks, 2)``.

    >>> v_shape(3).stage_to_rank
    (0, 1, 2, 2, 1, 0)
    """
    return wave(num_ranks, 2)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A placement and the order in which every rank runs its ops.

    ``orders[rank]`` is a read-only array of op codes, ``code = (kind * num_stages + stage) *
    num_microbatches + microbatch``: dense, so that a code also indexes a table of all ops. Any
    order can be held here; ``zerobubble.verify`` says whether it obeys the rules. Large schedules
    are built from such arrays (int64), which are kept as they are, small ones from ops.

    >>> s = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), BW(0, 0)]])
    >>> [str(op) for op in s.ops(0)]
    ['F0 of stage 0', 'BW0 of stage 0']
    """

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[Codes, ...]

    def __post_init__(self) -> None:
        if len(self.orders) != self.num_ranks:
            raise ScheduleError(
                f"{self.name}: {len(self.orders)} orders for {self.num_ranks} ranks: "
                "give one order for each rank"
            )
        if self.num_microbatches < 1:
            raise ScheduleError(f"{self.name}: a schedule has at least 1 microbatch")
        for rank, order in enumerate(self.orders):
            most = len(Kind) * self.num_stages * self.num_microbatches
            if len(order) and not 0 <= order.min() <= order.max() < most:
                raise ScheduleError(
                    f"{self.name}: rank {rank}: op codes go from {order.min()} to {order.max()}, "
                    f"but there are only 0..{most - 1}"
                )
            order.setflags(write=False)

    @classmethod
    def from_ops(
        cls,
        name: str,
        placement: Placement,
        num_microbatches: int,
        ops_of_ranks: Sequence[Iterable[Op]],
    ) -> "Schedule":
        """Build a schedule from one iterable of ops for each rank.

        Raises:
            ScheduleError: an op names a stage or microbatch that does not exist.
        """
        shape = (placement.num_stages, num_microbatches)
        orders = tuple(
            np.fromiter((_encode(op, *shape, name, rank) for op in ops), dtype=np.int64)
            for rank, ops in enumerate(ops_of_ranks)
        )
        return cls(name, placement, num_microbatches, orders)

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the pipeline."""
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        """Number of stages of the model."""
        return self.placement.num_stages

    @cached_property
    def num_kinds(self) -> int:
        """How many kinds a table of this schedule's ops has: those of ``Kind``, or without O, L, R.

        >>> Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), BW(0, 0)]]).num_kinds
        4
        """
        largest = max((int(order.max()) for order in self.orders if len(order)), default=0)
        is_basic = largest < _NUM_BASIC_KINDS * self.num_stages * self.num_microbatches
        return _NUM_BASIC_KINDS if is_basic else len(Kind)

    @property
    def num_codes(self) -> int:
        """Number of possible op codes: the size of a table indexed by code."""
        return self.num_kinds * self.num_stages * self.num_microbatches

    def by_kind(self, table: NDArray[Any]) -> NDArray[Any]:
        """View a table indexed by code as (kind, stage, microbatch)."""
        return table.reshape(self.num_kinds, self.num_stages, self.num_microbatches)

    def has(self, kind: Kind) -> NDArray[np.bool_]:
        """Tell which stages and microbatches have an op of a kind: shape (stages, microbatches).

        >>> s = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), B(0, 0), W(0, 0)]])
        >>> s.has(Kind.W).tolist(), s.has(Kind.O).tolist()
        ([[True]], [[False]])
        """
        found = np.zeros(len(Kind) * self.num_stages * self.num_microbatches, dtype=bool)
        for order in self.orders:
            found[order] = True
        by_kind = found.reshape(len(Kind), self.num_stages, self.num_microbatches)
        has_it: NDArray[np.bool_] = by_kind[kind]
        return has_it

    @cached_property
    def has_copies(self) -> bool:
        """Whether any activations are offloaded."""
        return self.num_kinds > _NUM_BASIC_KINDS and bool(self.has(Kind.O).any())

    @property
    def num_ops(self) -> int:
        """Number of ops on all ranks."""
        return sum(map(len, self.orders))

    def code(self, op: Op) -> int:
        """Encode an op as an integer below ``num_codes``."""
        return _encode(op, self.num_stages, self.num_microbatches, self.name)

    def op(self, code: int) -> Op:
        """Decode an op code."""
        rest, microbatch = divmod(int(code), self.num_microbatches)
        kind, stage = divmod(rest, self.num_stages)
        return Op(Kind(kind), stage, microbatch)

    def ops(self, rank: int) -> Iterator[Op]:
        """Yield the ops of one rank in the order it runs them."""
        return map(self.op, self.orders[rank].tolist())

    def flat(self) -> tuple[Codes, Codes]:
        """Join the orders of all ranks: codes, and where each rank's begin (and the last end).

        >>> s = Schedule.from_ops("mine", linear(2), 1, [[F(0, 0)], [F(1, 0), BW(1, 0)]])
        >>> [array.tolist() for array in s.flat()]
        [[0, 1, 7], [0, 1, 3]]
        """
        codes, offsets = np.concatenate(self.orders), np.cumsum([0, *map(len, self.orders)])
        codes.setflags(write=False)
        offsets.setflags(write=False)
        return codes, offsets

    def fields(self, codes: Codes) -> tuple[Codes, Codes, Codes]:
        """Split an array of codes into arrays of kinds, stages and microbatches."""
        rest, microbatches = np.divmod(codes, self.num_microbatches)
        kinds, stages = np.divmod(rest, self.num_stages)
        return kinds, stages, microbatches

    def split_stages(self) -> frozenset[int]:
        """Name the stages whose W runs apart from B.

        >>> from zerobubble import build
        >>> sorted(build("zb-h1", 2, 4).split_stages()), sorted(build("1f1b", 2, 4).split_stages())
        ([0, 1], [])
        """
        return frozenset(np.flatnonzero(self.has(Kind.W).any(axis=1)).tolist())

    def renamed(self, name: str) -> "Schedule":
        """Copy the schedule under another name."""
        return Schedule(name, self.placement, self.num_microbatches, self.orders)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            (self.name, self.placement, self.num_microbatches)
            == (other.name, other.placement, other.num_microbatches)
            and all(map(np.array_equal, self.orders, other.orders))
        )  # fmt: skip

    def __hash__(self) -> int:
        orders = tuple(order.tobytes() for order in self.orders)
        return hash((self.name, self.placement, self.num_microbatches, orders))


def _encode(op: Op, num_stages: int, num_microbatches: int, name: str, rank: int = -1) -> int:
    kind, stage, microbatch = op
    if not (0 <= stage < num_stages and 0 <= microbatch < num_microbatches):
        where = f"rank {rank}: " if rank >= 0 else ""
        raise ScheduleError(
            f"{name}: {where}{op} does not exist: there are stages 0..{num_stages - 1} "
            f"and microbatches 0..{num_microbatches - 1}"
        )
    return (kind * num_stages + stage) * num_microbatches + microbatch
