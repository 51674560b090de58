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

_KEY = "zerobubble/failure"
_MESSAGE_ACTIONS = (Action.AWAIT, Action.RELEASE, Action.SEND, Action.RECEIVE, Action.DISCARD)


def describe(error: Exception, rank: int, step: int, instruction: Instruction) -> PipelineError:
    """Turn an error in an instruction into one that names the rank, op and cause, for all ranks."""
    action, op, peer = instruction
    where = f"rank {rank}, {op}, step {step}"
    if action in _MESSAGE_ACTIONS and _is_lost_connection(error):
        lost = f"rank {rank} lost rank {peer} at {instruction}, step {step}"
        cause = _first_cause(f"{lost}: {_one_line(error)}")
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
    except RuntimeError as error:
        if not _is_lost_connection(error):
            cause = _first_cause(f"rank {rank}, {what}: {type(error).__name__}: {_one_line(error)}")
            raise PipelineError(cause) from error
        lost = "another rank" if peer is None else f"rank {peer}"
        cause = _first_cause(f"rank {rank} lost {lost}, {what}: {_one_line(error)}")
        raise PipelineError(f"rank {rank}, {what}: stopped, because of {cause}") from error


def _is_lost_connection(error: Exception) -> bool:
    """Tell the errors of gloo, NCCL and the store from others, such as lack of memory."""
    words = r"gloo|nccl|connection|timed? ?out|socket"
    is_lost = re.search(words, str(error), re.IGNORECASE) is not None
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and is_lost)


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
