"""What is a step about? The rank of the first stage tells the others, before anything else."""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import torch

from zerobubble.errors import UsageError
from zerobubble.ir import Schedule
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.transport import Transport


class Subject(NamedTuple):
    """What all ranks must know of a batch.

    Attributes:
        signature: of the shapes of its input, but for the number of samples.
        num_samples: in its input.
    """

    signature: int
    num_samples: int


class Announcements:
    """Passes the subject of every step along the ranks, and sees that all run the same.

    Args:
        schedule: of this rank; that of all others must be the same.
        chain: the ranks in the order of their first stages.
        transport: the connections of this rank.
    """

    def __init__(self, schedule: Schedule, chain: Sequence[int], transport: Transport) -> None:
        self._transport = transport
        position = chain.index(transport.rank)
        self._before = chain[position - 1] if position else None
        self._after = chain[position + 1 : position + 2]
        self._digest = crc32(b"".join(order.tobytes() for order in schedule.orders))

    def pass_on(self, subject: Subject | None, purpose: str, step: int) -> Subject:
        """Tell the next rank the subject, which the first rank knows and others are told.

        Raises:
            UsageError: the rank before runs another schedule, or for another purpose.
        """
        intention = crc32(f"{purpose} {self._digest}".encode())
        message = torch.tensor([intention, *(subject or (0, 0))])
        if self._before is not None:
            with naming_the_cause(self._transport.rank, f"start of step {step}", self._before):
                self._transport.receive_control(message, self._before)
            if int(message[0]) != intention:
                raise UsageError(
                    f"ranks {self._before} and {self._transport.rank} do not run the same: all "
                    "ranks must be given the same schedule and call step and eval in the same order"
                )
        self._transport.flush()  # of the step before: all of it has been read
        for rank in self._after:
            self._transport.send_control(message, rank)
        return Subject(int(message[1]), int(message[2]))
