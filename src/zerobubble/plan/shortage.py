"""What is missing where nothing fits into the memory, and which limit would do?"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.plan.cuts import cuts
from zerobubble.plan.names import bytes_up, layer_ranges
from zerobubble.plan.partition import best_cuts, partition
from zerobubble.plan.task import Task

# How closely the smallest limit is looked for where stages share the memory of a rank, as a share.
_PRECISION = 1e-3
# Steps of each search for a partition.
_STEPS = 2_000


class Need(NamedTuple):
    """What a partition needs at least, with one microbatch after the other.

    Attributes:
        more: bytes that every limit must grow by.
        microbatch_size: in samples.
        placement: rank of every stage.
        layers_per_stage: of the partition.
    """

    more: float
    microbatch_size: int
    placement: Placement
    layers_per_stage: tuple[int, ...]


def shortage(task: Task, choices: Iterable[tuple[int, Placement]]) -> UsageError:
    """Explain that nothing fits, by the choice of microbatch size and placement that needs least.

    The limit that it names works: a partition within it has been found. It is the smallest for
    one stage a rank, and close to it otherwise.
    """
    need = min((_least_need(task, *choice) for choice in choices), key=lambda need: need.more)
    tables, lengths = task.tables(need.microbatch_size), need.layers_per_stage
    weights = task.sums(tables.weights, lengths, need.placement)
    activations = task.sums(tables.activations, lengths, need.placement)
    missing = weights + activations - task.memory
    rank = int(missing.argmax())
    layers = [
        number
        for stage in need.placement.stages_of(rank)
        for number in range(*cuts(lengths)[stage])
    ]
    names = layer_ranges(task.profile.layer_names, layers)
    if (task.memory == task.memory[0]).all():
        advice = f"allow {bytes_up(task.memory[0] + need.more)} a rank"
    else:
        advice = f"allow {bytes_up(need.more)} more on every rank"
    return UsageError(
        f"nothing fits into the memory: with the layers spread as well as can be, rank "
        f"{rank} ({names}) needs {bytes_up(weights[rank])} for parameters, gradients and optimizer "
        f"and {bytes_up(activations[rank])} for the activations of a microbatch of "
        f"{need.microbatch_size}, but has {bytes_up(task.memory[rank])}: {advice}"
    )


def _least_need(task: Task, microbatch_size: int, placement: Placement) -> Need:
    """Find by how much all limits must grow at least until a partition fits."""
    sizes = task.tables(microbatch_size).plain_bytes
    holders = placement.stage_to_rank

    def more_for(lengths: tuple[int, ...]) -> float:
        return float((task.sums(sizes, lengths, placement) - task.memory).max())

    # As if every stage had its rank alone, which is so for one stage a rank.
    beyond = [np.where(np.isfinite(sizes), sizes - task.memory[rank], np.inf) for rank in holders]
    low, lengths = best_cuts(beyond, np.maximum)
    more = more_for(lengths)
    while more - low > _PRECISION * float((task.memory + more).max()):
        middle = (low + more) / 2
        even = np.ones(task.profile.num_layers)
        limits = task.memory + middle
        found = partition(even, len(holders), placement, sizes, limits, _STEPS)
        if found is None:
            low = middle
        else:
            lengths, more = found.layers_per_stage, more_for(found.layers_per_stage)
    return Need(more, microbatch_size, placement, lengths)
