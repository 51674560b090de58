"""From a profile and a memory limit to a plan: partition, placement, schedule and forecast.

What does the work is loaded with the first plan, so that importing the package stays quick.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from zerobubble.plan.data import Forecast, Plan
from zerobubble.profile import Profile

if TYPE_CHECKING:
    from zerobubble.plan.placing import Placements
    from zerobubble.search.relief import Offload, Recompute

__all__ = ["Forecast", "Plan", "make_plan"]


def make_plan(
    profile: Profile,
    num_ranks: int,
    batch_size: int,
    memory: ArrayLike | None = None,
    microbatch_sizes: Sequence[int] | None = None,
    placements: "Placements | None" = None,
    validate: str = "post",
    effort: str = "quick",
    schedule: str | None = None,
    offload: "Offload" = "off",
    recompute: "Recompute" = "off",
) -> Plan:
    """Plan how to train a profiled model: partition, placement, microbatch size and schedule.

    The plan is never worse than the balanced partition with the same placement and any registered
    schedule that fits. The same profile gives the same plan, with numba and without.

    Args:
        profile: of the model's layers.
        num_ranks: p.
        batch_size: number of samples in a step.
        memory: bytes of every rank, or of each, for parameters, gradients, optimizer state and
            activations; by default those of the profiled device, if it says how many.
        microbatch_sizes: in samples; by default all that the profile has and that divide the
            batch.
        placements: one or a list of ``linear``, ``v``, ``looped:2``, ``wave:4``, a ``Placement``
            or the ranks of all stages; by default those that have enough layers.
        validate: how the optimizer will step: ``post`` without a barrier, or ``sync``.
        effort: of every search for a schedule: ``quick``, ``default`` or ``thorough``.
        schedule: name of a registered schedule, such as ``interleaved:v=2``, for its placement;
            by default the best is searched.
        offload: whether activations may be moved to the host and back where that gains anything:
            ``off``, ``auto``, or ``all`` stages in any case.
        recompute: whether forwards may run again before their backwards: ``off``, ``auto``, or
            ``full`` for all stages.

    Raises:
        UsageError: the numbers do not fit each other, or nothing fits into the memory; then the
            message says what is missing, and the smallest memory that will do.

    >>> from zerobubble.profile import LayerCosts
    >>> block, head = LayerCosts(1, 1, 1, 1, 2), LayerCosts(2, 2, 2, 2, 4)
    >>> names = ("a", "b", "c", "d", "head")
    >>> profile = Profile("mine", "cpu", names, {1: (*[block] * 4, head)})
    >>> found = make_plan(profile, num_ranks=2, batch_size=8)
    >>> found.layers_per_stage, found.forecast.step_ms
    ((3, 2), 72.0)
    """
    from zerobubble.plan.joint import plan_jointly

    return plan_jointly(
        profile,
        num_ranks,
        batch_size,
        memory,
        microbatch_sizes,
        placements,
        validate,
        effort,
        schedule,
        offload,
        recompute,
    )
