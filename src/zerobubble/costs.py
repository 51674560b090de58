"""How long does each op take, and how many bytes does it hold?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobubble.errors import UsageError
from zerobubble.ir import Kind, Placement, Schedule

Floats = NDArray[np.float64]

# By this share a schedule may exceed a memory limit, and equal times differ: sums are rounded.
TOLERANCE = 1e-9

# Sums of fewer than 1e200 such values are finite.
LARGEST = 1e100

_REQUIRED = [
    "forward",
    "backward_input",
    "backward_weight",
    "transfer",
    "activation",
    "activation_kept",
]
_OPTIONAL = [
    "offload",
    "load",
    "recompute",
    "activation_offloaded",
    "activation_input",
    "activation_light",
    "recompute_light",
]


@dataclass(frozen=True, eq=False)
class Costs:
    """Times and activation sizes of every stage, as arrays of length ``num_stages``.

    Times share one unit (say ms), sizes another (say bytes, or microbatches). A single number
    stands for every stage.

    Attributes:
        forward: time of F.
        backward_input: time of B.
        backward_weight: time of W; BW takes the sum of both.
        transfer: time in which a boundary tensor travels between stage ``s`` and ``s + 1`` when
            they are on different ranks, in either direction; it overlaps compute.
        activation: what F allocates and holds until the backward.
        activation_kept: the part of ``activation`` that W still needs after B.
        offload: time of O, in which a copy engine moves ``activation_offloaded`` to the host.
        load: time of L, in which another one moves it back.
        recompute: time of R; by default that of F.
        activation_offloaded: the part of ``activation`` that O frees and L takes again; by default
            all of it.
        activation_input: what F holds until R where it is run again: the input of the stage; by
            default nothing.
        activation_light: the part of ``activation`` that B can compute again by itself: what
            norms, activation functions and dropout hold; by default nothing.
        recompute_light: the time by which B is longer then.
        ranks_per_engine: how many neighbouring ranks share the copy engine of each direction, as
            two devices behind one switch do; their copies take turns as they are asked for.

    Raises:
        UsageError: a value is negative or not finite, lengths differ, or more is kept than held.

    >>> Costs.uniform(num_stages=2, f=1, b=2, w=1).backward_input.tolist()
    [2.0, 2.0]
    """

    forward: Floats
    backward_input: Floats
    backward_weight: Floats
    transfer: Floats
    activation: Floats
    activation_kept: Floats
    offload: Floats = None  # type: ignore[assignment]
    load: Floats = None  # type: ignore[assignment]
    recompute: Floats = None  # type: ignore[assignment]
    activation_offloaded: Floats = None  # type: ignore[assignment]
    activation_input: Floats = None  # type: ignore[assignment]
    activation_light: Floats = None  # type: ignore[assignment]
    recompute_light: Floats = None  # type: ignore[assignment]
    ranks_per_engine: int = 1

    def __post_init__(self) -> None:
        none = np.zeros(len(self.forward))
        defaults = (none, none, self.forward, self.activation, none, none, none)
        for name, default in zip(_OPTIONAL, defaults, strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in _REQUIRED + _OPTIONAL:
            value: Floats = np.asarray(getattr(self, name), dtype=np.float64)
            if value.shape != (self.num_stages,):
                raise UsageError(
                    f"costs: {name} has {value.size} values for {self.num_stages} stages"
                )
            if not ((value >= 0) & (value <= LARGEST)).all():
                raise UsageError(f"costs: {name} must be between 0 and 1e100: {value}")
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        for part in ("kept", "offloaded", "input", "light"):
            if (getattr(self, f"activation_{part}") > self.activation).any():
                raise UsageError(f"costs: activation_{part} must not exceed activation")
        if type(self.ranks_per_engine) is not int or self.ranks_per_engine < 1:
            raise UsageError(
                f"costs: ranks_per_engine must be at least 1, not {self.ranks_per_engine!r}"
            )

    @property
    def num_stages(self) -> int:
        """Number of stages that the costs describe."""
        return len(self.forward)

    def require_stages(self, num_stages: int, holder: str) -> None:
        """Refuse costs that are not for the number of stages that ``holder`` has.

        Raises:
            UsageError: the numbers differ; the message names ``holder``.

        >>> Costs.uniform(2).require_stages(4, "zb-h1")
        Traceback (most recent call last):
        zerobubble.errors.UsageError: costs for 2 stages given, but zb-h1 has 4
        """
        if self.num_stages != num_stages:
            raise UsageError(
                f"costs for {self.num_stages} stages given, but {holder} has {num_stages}"
            )

    @classmethod
    def uniform(
        cls,
        num_stages: int,
        *,
        f: float = 1,
        b: float = 1,
        w: float = 1,
        transfer: float = 0,
        activation: float = 1,
        kept: float = 1,
    ) -> "Costs":
        """Give every stage the same costs; ``kept`` is the share of the activation W needs."""
        values = (f, b, w, transfer, activation, activation * kept)
        columns: list[Any] = [np.full(num_stages, value, dtype=np.float64) for value in values]
        return cls(*columns)

    @classmethod
    def of_ranks(
        cls,
        placement: Placement,
        f: float = 1,
        b: float = 1,
        w: float = 1,
        transfer: float = 0,
        kept: float = 1,
    ) -> "Costs":
        """Share the costs of one rank's whole part of the model evenly among its stages.

        ``transfer`` is per hop. The unit of memory is what one microbatch's forwards of all
        stages of a rank allocate, so that 1F1B on p ranks peaks at p.

        >>> from zerobubble.ir import looped
        >>> Costs.of_ranks(looped(2, v=2), f=1, b=2, w=1).backward_input.tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        share = stage_shares(placement)
        return cls(
            f * share, b * share, w * share, np.full(len(share), transfer), share, kept * share
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], placement: Placement) -> "Costs":
        """Read the costs from the mapping of a costs file.

        Keys ``forward``, ``backward_input`` and ``backward_weight`` are required: a number or a
        list with one value for each stage. ``transfer`` (0) may also have one value for each
        boundary; ``activation`` (an even share of the rank) and ``activation_kept`` (all of it)
        are optional, and so is all that is about O, L and R.

        Raises:
            UsageError: a key is missing or unknown, or a value has the wrong type or length.
        """
        known = [*_REQUIRED, *_OPTIONAL, "ranks_per_engine"]
        if unknown := sorted(set(values) - set(known)):
            raise UsageError(f"costs: unknown key {unknown[0]!r}; the keys are {', '.join(known)}")
        if missing := [name for name in known[:3] if name not in values]:
            raise UsageError(f"costs: key {missing[0]!r} is missing")
        num_stages = placement.num_stages
        f, b, w = (_per_stage(name, values[name], num_stages) for name in known[:3])
        transfer = _per_stage("transfer", values.get("transfer", 0), num_stages, boundaries=True)
        activation = _per_stage(
            "activation", values.get("activation", stage_shares(placement)), num_stages
        )
        kept = _per_stage("activation_kept", values.get("activation_kept", activation), num_stages)
        optional = {
            name: _per_stage(name, values[name], num_stages) for name in _OPTIONAL if name in values
        }
        engines = values.get("ranks_per_engine", 1)
        return cls(f, b, w, transfer, activation, kept, **optional, ranks_per_engine=engines)

    def to_dict(self) -> dict[str, Any]:
        """Give the mapping that ``from_dict`` reads, without what is as by default."""
        plain = Costs(**{name: getattr(self, name) for name in _REQUIRED})
        told = [name for name in _OPTIONAL if (getattr(self, name) != getattr(plain, name)).any()]
        values: dict[str, Any] = {name: getattr(self, name).tolist() for name in _REQUIRED + told}
        shared = self.ranks_per_engine
        return values | ({"ranks_per_engine": shared} if shared > 1 else {})

    def with_bandwidth(self, offload: float, load: float | None = None) -> "Costs":
        """Give O and L the times that the copy engines need for what is offloaded.

        Args:
            offload: how much of the unit of ``activation`` travels to the host in a unit of time.
            load: how much travels back; by default as much.

        Raises:
            UsageError: a bandwidth is not positive.

        >>> Costs.uniform(2, activation=3).with_bandwidth(2).load.tolist()
        [1.5, 1.5]
        """
        back = offload if load is None else load
        for value in (offload, back):
            if not 0 < value < np.inf:
                raise UsageError(f"the bandwidth of offload must be positive: {value}")
        moved = self.activation_offloaded
        return replace(self, offload=moved / offload, load=moved / back)

    def light(self) -> "Costs":
        """Give the costs of a run with light recompute: F holds less, and B takes longer.

        What goes is neither held nor offloaded, so copies are shorter in proportion. W needs as
        much as before, at most what F holds (arXiv 2503.01328, section 3).

        >>> from dataclasses import replace
        >>> costs = replace(Costs.uniform(1), activation_light=[0.25], recompute_light=[0.5])
        >>> costs.light().activation.tolist(), costs.light().backward_input.tolist()
        ([0.75], [1.5])
        """
        none = np.zeros(self.num_stages)
        activation = self.activation - self.activation_light
        moved = np.maximum(self.activation_offloaded - self.activation_light, 0.0)
        share = np.divide(moved, self.activation_offloaded, out=none.copy(), where=moved > 0)
        return replace(
            self,
            backward_input=self.backward_input + self.recompute_light,
            activation=activation,
            activation_kept=np.minimum(self.activation_kept, activation),
            offload=self.offload * share,
            load=self.load * share,
            activation_offloaded=moved,
            activation_input=np.minimum(self.activation_input, activation),
            activation_light=none,
            recompute_light=none,
        )

    def durations(self) -> Floats:
        """Tabulate the time of every op: shape (number of kinds, num_stages)."""
        table: Floats = np.zeros((len(Kind), self.num_stages))
        table[Kind.F] = self.forward
        table[Kind.B] = self.backward_input
        table[Kind.W] = self.backward_weight
        table[Kind.BW] = self.backward_input + self.backward_weight
        table[Kind.O] = self.offload
        table[Kind.L] = self.load
        table[Kind.R] = self.recompute
        return table

    def memory_changes(self) -> Floats:
        """Tabulate what every op adds to the memory of its rank: shape (kinds, num_stages).

        F and R add as they start; B and W free as they end; O frees as the compute passes it, and
        L adds then. What an F adds whose microbatch is run again is less by what its R adds.
        """
        table: Floats = np.zeros((len(Kind), self.num_stages))
        table[Kind.F] = self.activation
        table[Kind.B] = self.activation_kept - self.activation
        table[Kind.W] = -self.activation_kept
        table[Kind.BW] = -self.activation
        table[Kind.O] = -self.activation_offloaded
        table[Kind.L] = self.activation_offloaded
        table[Kind.R] = self.activation - self.activation_input
        return table

    def memory_changes_of(self, schedule: Schedule, rank: int) -> Floats:
        """List what every op of a rank adds to its memory, in the rank's order.

        >>> from zerobubble.ir import BW, F, R, linear
        >>> ops = [F(0, 0), F(0, 1), R(0, 0), BW(0, 0), BW(0, 1)]
        >>> Costs.uniform(1).memory_changes_of(
        ...     Schedule.from_ops("mine", linear(1), 2, [ops]), 0
        ... ).tolist()
        [0.0, 1.0, 1.0, -1.0, -1.0]
        """
        kinds, stages, microbatches = schedule.fields(schedule.orders[rank])
        table = self.memory_changes()
        changes: Floats = table[kinds, stages]
        if schedule.num_kinds > Kind.R:
            again = (kinds == Kind.F) & schedule.has(Kind.R)[stages, microbatches]
            changes[again] -= table[Kind.R, stages[again]]
        return changes


def stage_shares(placement: Placement) -> Floats:
    """Give each stage's even share of its rank: one over the number of stages there."""
    holders = np.asarray(placement.stage_to_rank)
    shares: Floats = 1.0 / np.bincount(holders)[holders]
    return shares


def _per_stage(name: str, value: ArrayLike, num_stages: int, boundaries: bool = False) -> Floats:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "iuf":
        raise UsageError(f"costs: {name} must be a number or a list of numbers: {value!r}")
    if array.ndim == 0:
        return np.full(num_stages, array, dtype=np.float64)
    if boundaries and array.shape == (num_stages - 1,):
        return np.append(array, 0.0)
    if array.shape != (num_stages,):
        raise UsageError(f"costs: {name} has {array.size} values for {num_stages} stages")
    return array.astype(np.float64)
