"""Can what a user asks for be planned at all?"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from zerobubble.errors import UsageError
from zerobubble.plan.task import Task
from zerobubble.profile import Profile
from zerobubble.search.effort import effort_named
from zerobubble.verify import limits_of_ranks


def read_task(
    profile: Profile,
    num_ranks: int,
    batch_size: int,
    memory: ArrayLike | None,
    validate: str,
    effort: str,
) -> Task:
    """Check what is to be planned; arguments and errors as for ``zerobubble.plan.make_plan``."""
    for what, count in {"ranks": num_ranks, "batch size": batch_size}.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise UsageError(f"{what} must be a whole number of 1 or more, not {count!r}")
    if num_ranks > profile.num_layers:
        raise UsageError(
            f"{profile.num_layers} layers cannot be shared by {num_ranks} ranks, each needs "
            f"one: use at most {profile.num_layers} ranks, or profile smaller layers"
        )
    if validate not in ("post", "sync"):
        raise UsageError(f"validate must be 'post' or 'sync', not {validate!r}")
    effort_named(effort)
    if memory is None:
        memory = np.inf if profile.memory_bytes is None else profile.memory_bytes
    limits = limits_of_ranks(memory, num_ranks)
    return Task(profile, int(num_ranks), int(batch_size), limits, validate, effort)


def read_microbatch_sizes(task: Task, asked: Sequence[int] | None) -> list[int]:
    """List the sizes to try: those of the profile that divide the batch."""
    known = list(task.profile.layers)
    for size in asked or ():
        task.profile.at(size)
    sizes = [size for size in known if not task.batch_size % size and (not asked or size in asked)]
    if not sizes:
        raise UsageError(
            f"a batch of {task.batch_size} samples cannot be cut into microbatches of "
            f"{', '.join(map(str, asked or known))}: choose a multiple, or profile other sizes"
        )
    return sizes
