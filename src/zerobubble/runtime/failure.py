"""Which rank failed first, in which op, and why? Every rank can say so.

The rank that fails leaves one line in the store that the processes share, then ends. Its
neighbours notice the broken connection, read the line, and end with it; so do theirs.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from zerobubble.errors import PipelineError, UsageError
from zerobubble.lower import Action, Instruction
from zerobubble.runtime.transport import LostRankError
from zerobubble.runtime.watch import longest_at_work

_KEY = "zerobubble/failure"
_TIMEOUT = "timed? ?out"
_MESSAGE_ACTIONS = (Action.AWAIT, Action.RELEASE, Action.SEND, Action.RECEIVE, Action.DISCARD)


def describe(error: Exception, rank: int, step: int, instruction: Instruction) -> PipelineError:
    """Turn an error in an instruction into one that names the rank, op and cause, for all ranks."""
    action, op, peer = instruction
    where = f"rank {rank}, {op}, step {step}"
    is_message = action in _MESSAGE_ACTIONS or isinstance(error, LostRankError)
    if is_message and _is_lost_connection(error):
        peer = getattr(error, "peer", peer)
        cause = _cause_of_loss(f"rank {rank} lost rank {peer} at {instruction}, step {step}", error)
        return PipelineError(f"{where}: stopped, because of {cause}")
    cause = f"{where}: {type(error).__name__}: {_one_line(error)}"
    _first_cause(cause)
    return PipelineError(cause)


@contextmanager
def naming_the_cause(rank: int, what: str, peer: int | None = None) -> Iterator[None]:
    """Name the first cause when a connection breaks between the ops, and leave a user's mistake.

    Args:
        rank: this one.
        what: it is doing.
        peer: the only rank to which the connection can break, if that is known.

    Raises:
        PipelineError: another rank has gone.
    """
    try:
        yield
    except UsageError as error:
        _first_cause(f"rank {rank}, {what}: UsageError: {_one_line(error)}")
        raise
    except PipelineError:
        raise
    except Exception as error:
        if not _is_lost_connection(error):
            cause = _first_cause(f"rank {rank}, {what}: {type(error).__name__}: {_one_line(error)}")
            raise PipelineError(cause) from error
        peer = getattr(error, "peer", peer)
        lost = "another rank" if peer is None else f"rank {peer}"
        cause = _cause_of_loss(f"rank {rank} lost {lost}, {what}", error)
        raise PipelineError(f"rank {rank}, {what}: stopped, because of {cause}") from error


def _is_lost_connection(error: Exception) -> bool:
    """Tell the errors of gloo, NCCL and the store from others, such as lack of memory."""
    words = rf"gloo|nccl|connection|{_TIMEOUT}|socket"
    is_lost = re.search(words, str(error), re.IGNORECASE) is not None
    is_told = isinstance(error, dist.DistError | LostRankError)
    return is_told or (isinstance(error, RuntimeError) and is_lost)


def _cause_of_loss(lost: str, error: Exception) -> str:
    """Leave as the cause who is at work for too long, or else who has been lost."""
    cause = f"{lost}: {_one_line(error)}"
    if re.search(_TIMEOUT, str(error), re.IGNORECASE):
        try:
            busy = longest_at_work()
        except RuntimeError:  # the store has gone
            busy = None
        if busy is not None:
            cause = f"{busy}, longer than the timeout: make it faster, or raise it"
    return _first_cause(cause)


def _first_cause(cause: str) -> str:
    """Leave a cause in the shared store unless one is there; return the one that is."""
    if not dist.is_initialized():
        return cause
    try:
        store = dist.distributed_c10d._get_default_store()
        return str(store.compare_set(_KEY, "", cause).decode())
    except RuntimeError:  # the store went down together with the process that kept it
        return cause


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)
