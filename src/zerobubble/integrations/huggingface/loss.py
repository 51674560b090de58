"""What does a causal LM minimise, and over which labels is its mean taken?"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from zerobubble.errors import UsageError

IGNORED = -100


def next_token_loss(logits: Tensor, target: Any) -> Tensor:
    """Give the mean cross-entropy in nats per label, a float32 scalar; labels of -100 are ignored.

    Args:
        logits: ``[B, T, V]`` of a microbatch, of any floating dtype.
        target: labels ``[B, T]``, the one at t for the logits at t: already shifted. The mean is
            that of the microbatch; or what ``batch_targets`` gives, with the mean of the batch.

    >>> import torch
    >>> loss = next_token_loss(torch.zeros(1, 3, 8), torch.tensor([[5, 7, -100]]))
    >>> round(loss.item(), 4)  # ln 8
    2.0794
    """
    labels, labels_per_sample = target if isinstance(target, tuple | list) else (target, None)
    flat = logits.float().flatten(0, 1), labels.flatten()
    if labels_per_sample is None:
        count = (labels != IGNORED).sum().clamp(min=1)
    else:
        count = len(labels) * labels_per_sample
    loss: Tensor = F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum") / count
    return loss


def shift_labels(labels: Tensor) -> Tensor:
    """Turn labels as ``model(input_ids, labels=labels)`` takes them into targets.

    Args:
        labels: ``[B, T]``, usually the input itself, -100 where no loss is wanted.

    Returns:
        ``[B, T]``: at t the label of t + 1, and -100 at the end.

    >>> import torch
    >>> shift_labels(torch.tensor([[3, 4, 5]]))
    tensor([[   4,    5, -100]])
    """
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def batch_targets(targets: Tensor) -> tuple[Tensor, float]:
    """Make the loss of a batch the mean over all its labels, however they are distributed.

    Microbatches with fewer labels would weigh as much as others if each took its own mean. Give
    the result to ``Pipeline.step`` as ``y``.

    Args:
        targets: ``[B, T]`` of the whole batch, already shifted.

    Raises:
        UsageError: there is no label.

    >>> import torch
    >>> batch_targets(torch.tensor([[3, -100], [4, 5]]))[1]  # labels of a sample, in the mean
    1.5
    """
    count = int((targets != IGNORED).sum())
    if not count:
        raise UsageError(f"all labels of the batch are {IGNORED}: there is nothing to learn")
    return targets, count / len(targets)
