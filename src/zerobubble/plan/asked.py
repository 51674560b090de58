"""Can what a user asks for be planned at all?"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value
from zerobubble.plan.task import Task
from zerobubble.profile import Profile
from zerobubble.schedules.registry import LARGEST_SIZE
from zerobubble.search.effort import effort_named
from zerobubble.search.relief import Offload, Recompute
from zerobubble.verify import limits_of_ranks


def read_task(
    profile: Profile,
    num_ranks: int,
    batch_size: int,
    memory: ArrayLike | None,
    validate: str,
    effort: str,
    offload: Offload,
    recompute: Recompute,
) -> Task:
    """Check what is to be planned; arguments and errors as for ``zerobubble.plan.make_plan``."""
    if not isinstance(profile, Profile):
        raise UsageError(
            f"profile must be a Profile, such as profile.load or profiling.measure gives, not "
            f"{show_value(profile)}"
        )
    for what, count in {"ranks": num_ranks, "batch size": batch_size}.items():
        if not _is_count(count):
            raise UsageError(f"{what} must be a whole number of 1 or more, not {show_value(count)}")
    if num_ranks > profile.num_layers:
        raise UsageError(
            f"{profile.num_layers} layers cannot be shared by {num_ranks} ranks, each needs "
            f"one: use at most {profile.num_layers} ranks, or profile smaller layers"
        )
    if validate not in ("post", "sync"):
        raise UsageError(f"validate must be 'post' or 'sync', not {validate!r}")
    effort_named(effort)
    for what, given, known in (
        ("offload", offload, ("off", "auto", "all")),
        ("recompute", recompute, ("off", "auto", "full")),
    ):
        if given not in known:
            raise UsageError(f"{what} must be one of {', '.join(known)}, not {show_value(given)}")
    if memory is None:
        memory = np.inf if profile.memory_bytes is None else profile.memory_bytes
    limits = limits_of_ranks(memory, num_ranks)
    counts = int(num_ranks), int(batch_size)
    return Task(profile, *counts, limits, validate, effort, offload, recompute)


def read_microbatch_sizes(task: Task, asked: Sequence[int] | None) -> list[int]:
    """List the sizes to try: those of the profile that divide the batch."""
    known = list(task.profile.layers)
    is_list = isinstance(asked, Iterable) and np.ndim(asked) == 1
    if asked is not None and not (is_list and all(map(_is_count, asked))):
        raise UsageError(
            f"microbatch sizes must be a list of whole numbers, not {show_value(asked)}"
        )
    asked = None if asked is None else list(asked)
    for size in asked or ():
        task.profile.at(size)
    sizes = [size for size in known if not task.batch_size % size and (not asked or size in asked)]
    if not sizes:
        raise UsageError(
            f"a batch of {task.batch_size} samples cannot be cut into microbatches of "
            f"{', '.join(map(str, asked or known))}: choose a multiple, or profile other sizes"
        )
    few = [size for size in sizes if _num_forwards(task, size) <= LARGEST_SIZE]
    if not few:
        size = max(sizes)
        raise UsageError(
            f"batch size {task.batch_size} is too large: {task.num_microbatches(size)} "
            f"microbatches of {size} on {task.num_ranks} ranks are more than {LARGEST_SIZE} "
            "forwards; plan for a smaller batch, or profile larger microbatches"
        )
    return few


def _num_forwards(task: Task, microbatch_size: int) -> int:
    return task.num_microbatches(microbatch_size) * task.num_ranks


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and value >= 1
