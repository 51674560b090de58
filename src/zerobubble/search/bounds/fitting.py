"""How much work of a rank can wait in its memory, and how long must the rank wait for more?

Every number here is a bound that no schedule can pass. Three facts about any order of a rank's
ops give them (its stages are numbered in forward order here, microbatches go in order):

- its first op is F of its first stage, and its last op is no earlier than the last W there;
- its first B is that of its deepest stage, and so is its last F;
- of two of its stages, the shallower has done at least as many forwards and at most as many
  input gradients as the deeper.
"""

import numpy as np

from zerobubble.costs import Floats
from zerobubble.search.problem import Share


def wait_before_first_backward(share: Share) -> float:
    """Give the least idle time of a rank between its first op and its first B.

    Before it only forwards can run, and at most those whose activations fit together.
    """
    gap = float(share.earliest_backward[-1] - share.earliest_forward[0])
    wait = gap - _forwards_that_fit(share, share.num_stages)
    return max(wait, wait_before_deepest_forward(share))


def wait_before_deepest_forward(share: Share) -> float:
    """Give the least idle time of a rank between its first op and the first F of its last stage.

    Before the first F of a stage only the forwards of shallower stages can run, and as no B can
    have freed memory yet, they must leave room for one microbatch on all deeper stages.
    """
    gaps: list[float] = (share.earliest_forward - share.earliest_forward[0]).tolist()
    return max(0.0, *(gap - _forwards_that_fit(share, depth) for depth, gap in enumerate(gaps)))


def wait_before_last_forward(share: Share) -> float:
    """Give the least idle time of a rank between its first op and its last F.

    If memory cannot hold all microbatches, the last F runs after the first B.
    """
    if share.fits_all:
        return wait_before_deepest_forward(share)
    return wait_before_first_backward(share)


def wait_after_last_forward(share: Share) -> float:
    """Give the least idle time of a rank after its last F.

    The B of the same microbatch come back to it no earlier than the pipeline allows. Before that
    of stage s, the rank can do what memory holds after the last F, except B and W of this
    microbatch on s and on the stages before s.
    """
    end_of_last_forward = share.earliest_forward[-1] + share.forward[-1]
    arrivals = share.earliest_backward - end_of_last_forward
    must_follow = np.cumsum(share.backward + share.weight)
    return max(0.0, float((arrivals + must_follow).max()) - work_after_last_forward(share))


def work_after_last_forward(share: Share) -> float:
    """Give the most work that a rank can still have to do when its last F ends.

    Only B and W are left, of microbatches whose activations the memory holds. On every stage the
    last microbatch has both to do.
    """
    backward = share.backward + share.weight
    most = share.num_microbatches * float(backward.sum())
    if share.fits_all:
        return most
    if _one_size(share.activation) and _one_size(share.kept):
        return min(most, _whole_activations_and_leftovers(share))
    sizes = np.append(_prefix_sums(share.activation), share.kept)
    work = np.append(_prefix_sums(backward), share.weight)
    room = share.limit - float(share.activation.sum())
    return min(most, float(backward.sum()) + _most_work(room, work, sizes, share))


def weights_before_last_forward(share: Share) -> float:
    """Give the least work of W that memory makes a rank do before its last F starts.

    At that time the last microbatch holds its activations on all stages, and any other whose W
    is left holds at least what W needs.
    """
    room = _whole(share.limit - float(share.activation.sum()), share.kept)
    left = float(share.weight.sum()) + _most_work(room, share.weight, share.kept, share)
    return max(0.0, share.num_microbatches * float(share.weight.sum()) - left)


def _forwards_that_fit(share: Share, depth: int) -> float:
    """Give the most forward work on the first ``depth`` stages that fits into the memory.

    One microbatch has its F on all of these, and room is left for it on the deeper ones.
    """
    forward, activation = share.forward[:depth], share.activation[:depth]
    most = share.num_microbatches * float(forward.sum())
    if share.fits_all:
        return most
    room = _whole(share.limit, share.activation) - float(share.activation.sum())
    work, sizes = _prefix_sums(forward), _prefix_sums(activation)
    return min(most, float(forward.sum()) + _most_work(room, work, sizes, share))


def _whole_activations_and_leftovers(share: Share) -> float:
    """Give the most B and W left after the last F where all stages hold the same sizes.

    n activations are held for B, and as many leftovers for W alone as fit beside them.
    """
    stages, size, kept = share.num_stages, float(share.activation[0]), float(share.kept[0])
    every = share.num_microbatches * stages
    fitting = max(stages, int(share.limit / size))
    held = np.arange(stages, min(every, fitting) + 1)
    beside = every - held
    if kept > 0:
        beside = np.minimum(beside, np.floor((share.limit - held * size) / kept))
    backward = _prefix_sums(share.backward + share.weight)
    densest = float((backward / np.arange(1, stages + 1)).max())
    left = backward[-1] + (held - stages) * densest + beside * share.weight.max()
    return float(left.max())


def _most_work(room: float, work: Floats, sizes: Floats, share: Share) -> float:
    """Give the most work that fits into a room, of items that may be cut anywhere.

    All but one microbatch has one item of each sort.
    """
    count, total = share.num_microbatches - 1, 0.0
    pairs = zip(work.tolist(), sizes.tolist(), strict=True)
    items = [(w / size if size > 0 else np.inf, w, size) for w, size in pairs]
    for _, w, size in sorted(items, reverse=True):
        number = min(count, max(0.0, room) / size) if size > 0 else count
        total += number * w
        room -= number * size
    return total


def _prefix_sums(values: Floats) -> Floats:
    """Sum the first stage, the first two, and so on: a deeper stage never goes without these."""
    return np.cumsum(values)


def _whole(room: float, sizes: Floats) -> float:
    """Round a room down to whole items if all have one size."""
    size = float(sizes[0])
    if not _one_size(sizes) or size == 0 or np.isinf(room):
        return room
    return size * float(np.floor(room / size))


def _one_size(sizes: Floats) -> bool:
    return bool((sizes == sizes[0]).all())
