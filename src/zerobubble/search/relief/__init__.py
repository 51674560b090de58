"""What may leave the memory of a rank between F and B, and how little is left there?

A stage that is offloaded holds ``activation - activation_offloaded`` then, one that is run again
``activation_input``; at its own F and B it holds all of its activation.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.costs import TOLERANCE, Costs, Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Flags, Placement
from zerobubble.verify import limits_of_ranks

Offload = Literal["off", "auto", "all"]
Recompute = Literal["off", "auto", "light", "full"]


@dataclass(frozen=True)
class Relief:
    """By what a search may meet a memory limit, besides the order of the ops.

    Attributes:
        offload: ``off``; ``auto``, where a stage is offloaded if that is best; ``all`` stages.
        recompute: ``off``; ``light``, where B computes norms, activation functions and dropout
            again; ``full``, where every stage is run again; ``auto``: whatever of these is best.

    Raises:
        UsageError: a word is unknown, or everything is to be both offloaded and run again.
    """

    offload: Offload = "off"
    recompute: Recompute = "off"

    def __post_init__(self) -> None:
        for name, words in (("offload", Offload), ("recompute", Recompute)):
            known, asked = get_args(words), getattr(self, name)
            if asked not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, not {asked!r}")
        if self.offload == "all" and self.recompute == "full":
            raise UsageError(
                "offload all and recompute full exclude each other: a stage is offloaded or run "
                "again, so make one of them auto"
            )

    @property
    def may_offload(self) -> bool:
        """Whether any stage may be offloaded."""
        return self.offload != "off" and self.recompute != "full"

    @property
    def may_run_again(self) -> bool:
        """Whether any stage may be run again as a whole."""
        return self.recompute in ("auto", "full") and self.offload != "all"

    @property
    def is_chosen(self) -> bool:
        """Whether the search decides stage by stage, and may leave every stage as it is."""
        return self.offload != "all" and self.recompute != "full"

    def variants(self, costs: Costs) -> list[Costs]:
        """List the costs to search: without light recompute, with it, or both.

        Raises:
            UsageError: light recompute is asked for, and the costs do not know what it saves.
        """
        if self.recompute == "light":
            return [require_light(costs).light()]
        saves = bool(costs.activation_light.any())
        return [costs, costs.light()] if self.recompute == "auto" and saves else [costs]

    def rest(self, costs: Costs) -> Floats:
        """Give the least that a stage holds for a microbatch between its F and its B."""
        kept = [np.inf if not self.is_chosen else costs.activation]
        if self.may_offload:
            kept.append(costs.activation - costs.activation_offloaded)
        if self.may_run_again:
            kept.append(costs.activation_input)
        least: Floats = np.min(np.broadcast_arrays(*kept), axis=0)
        return least


def require_light(costs: Costs) -> Costs:
    """Refuse costs that do not know light recompute.

    Raises:
        UsageError: they do not say what it saves.
    """
    if not costs.activation_light.any():
        raise UsageError(
            "recompute light: the costs do not say what it saves: give activation_light and "
            "recompute_light for each stage"
        )
    return costs


@dataclass(frozen=True, eq=False)
class Decision:
    """Which stages are offloaded, and which are run again; shape (stages,) each."""

    is_offloaded: Flags
    is_run_again: Flags

    def rest(self, costs: Costs) -> Floats:
        """Give what every stage holds for a microbatch between its F and its B."""
        offloaded = costs.activation - costs.activation_offloaded
        kept = np.where(self.is_offloaded, offloaded, costs.activation)
        held: Floats = np.where(self.is_run_again, costs.activation_input, kept)
        return held

    def relaxed(self, costs: Costs, share: float = 0.0) -> Costs:
        """Give costs under which copies take no room and no time, and R is a part of B.

        ``share`` is the part of an offloaded activation that is on the device on average.
        """
        rest = self.rest(costs)
        rest = rest + share * self.is_offloaded * (costs.activation - rest)
        longer = costs.backward_input + self.is_run_again * costs.recompute
        return holding(replace(costs, backward_input=longer), rest)


def holding(costs: Costs, held: Floats) -> Costs:
    """Give costs under which F allocates no more than what is held, of which W needs a part.

    >>> holding(Costs.uniform(2), np.array([0.5, 1.0])).activation_kept.tolist()
    [0.5, 1.0]
    """
    parts = ("activation_kept", "activation_offloaded", "activation_input", "activation_light")
    least = {name: np.minimum(getattr(costs, name), held) for name in parts}
    return replace(costs, activation=held, **least)


def smallest_relieved_memory(costs: Costs, placement: Placement, rest: Floats) -> Floats:
    """Give, for every rank, the smallest limit within which a schedule exists.

    It is what a microbatch leaves there on all shallower stages of the rank, and all that it holds
    on the one where its F or B runs, for the stage where this is largest.

    >>> from zerobubble.ir import looped
    >>> costs = Costs.uniform(4, activation=3)
    >>> smallest_relieved_memory(costs, looped(2, v=2), np.ones(4)).tolist()
    [4.0, 4.0]
    """
    needed = np.zeros(placement.num_ranks)
    left = np.zeros(placement.num_ranks)
    for stage, rank in enumerate(placement.stage_to_rank):
        needed[rank] = max(needed[rank], left[rank] + costs.activation[stage])
        left[rank] += rest[stage]
    return needed


def require_room(costs: Costs, placement: Placement, memory: ArrayLike, relief: Relief) -> Floats:
    """Give every rank its memory limit.

    Raises:
        UsageError: no schedule exists within one; the message names the smallest that will do.
    """
    limits = limits_of_ranks(memory, placement.num_ranks)
    needed = smallest_relieved_memory(costs, placement, relief.rest(costs))
    if (needed > limits * (1 + TOLERANCE)).any():
        rank = int(np.argmax(needed - limits))
        how = " or ".join(["offloaded"] * relief.may_offload + ["run again"] * relief.may_run_again)
        raise UsageError(
            f"rank {rank}: no schedule fits into memory {limits[rank]:g}, even with stages {how}: "
            f"one microbatch of one stage, and what the stages before it leave on the device, are "
            f"together {needed[rank]:g}: allow at least {needed[rank]:g} on rank {rank}"
        )
    return limits
