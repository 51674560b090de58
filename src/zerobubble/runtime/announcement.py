"""What is a step about? The rank of the first stage tells the others, and each takes its batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.ir import Schedule
from zerobubble.runtime.batch import Batch, count_samples, share_samples, signature, take_batch
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.partition import takes
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.transport import Transport

_BITS = 62  # so many keywords are compared between the ranks


class Announcements:
    """Takes this rank's part of every batch, after all ranks have agreed on what it is.

    Args:
        schedule: of this rank; that of all others must be the same.
        stages: of this rank.
        chain: the ranks in the order of their first stages.
        transport: the connections of this rank; all ranks build this together.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        chain: Sequence[int],
        transport: Transport,
    ) -> None:
        self._transport = transport
        self._stages = stages
        self._last, self._num_microbatches = schedule.num_stages - 1, schedule.num_microbatches
        position = chain.index(transport.rank)
        self._before = chain[position - 1] if position else None
        self._after = chain[position + 1 : position + 2]
        self._digest = crc32(b"".join(order.tobytes() for order in schedule.orders))
        self._own_keywords = {name for stage in stages.values() for name in stage.module.keywords}
        self._keywords: set[str] = set().union(*transport.share_object(self._own_keywords))
        self._numbers = {name: 1 << i for i, name in enumerate(sorted(self._keywords)[:_BITS])}

    def take(self, x: Any, y: Any, keywords: Mapping[str, Any], intention: str, step: int) -> Batch:
        """Tell the next rank what a batch is like, and take what this rank reads of it.

        Raises:
            UsageError: something is missing, unknown, or not shaped as the rest; or the rank
                before runs another schedule, or for another purpose.
        """
        taken = self._taken(keywords)
        x, y = self._read(0, "x", x), self._read(self._last, "y", y)
        about, num_samples = 0, 0
        if 0 in self._stages:
            about, num_samples = signature(x), count_samples(x)
            about ^= crc32(repr(sorted(taken)).encode())
            share_samples(num_samples, self._num_microbatches)
        present = self._bits(name for name in taken if name in self._own_keywords)
        absent = self._bits(name for name in self._own_keywords if name not in taken)
        known = (about, num_samples, present, absent)
        about, num_samples = self._pass_on(known, intention, step)
        sizes = share_samples(num_samples, self._num_microbatches)
        return take_batch(x, y, taken, sizes, about, self._transport.device)

    def _read(self, stage: int, what: str, value: Any) -> Any:
        """Give a value to the rank of the stage that reads it; it must be there."""
        if stage in self._stages and value is None:
            raise UsageError(f"rank {self._transport.rank} holds stage {stage} and needs {what}")
        return value if stage in self._stages else None

    def _taken(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Select the keywords that this rank's layers take."""
        for name in keywords:
            if not takes(self._keywords, name):
                known = sorted(self._keywords) or "no keywords"
                raise UsageError(f"no layer of the model takes keyword {name!r}; they take {known}")
        return {name: v for name, v in keywords.items() if takes(self._own_keywords, name)}

    def _bits(self, names: Iterable[str]) -> int:
        return sum(self._numbers.get(name, 0) for name in names)

    def _pass_on(self, known: tuple[int, ...], intention: str, step: int) -> tuple[int, int]:
        """Tell the next rank what the first one knows, and the others are told.

        What travels: what all must do alike, signature and samples of the batch, and the keywords
        that ranks so far were given, and were not although their layers take them.
        """
        digest = crc32(f"{intention} {self._digest}".encode())
        message = torch.tensor([digest, *known])
        if self._before is not None:
            with naming_the_cause(self._transport.rank, f"start of step {step}", self._before):
                self._transport.receive_control(message, self._before)
            if int(message[0]) != digest:
                raise UsageError(
                    f"ranks {self._before} and {self._transport.rank} do not run the same: all "
                    "ranks must be given the same schedule, and call step and eval of the pipeline "
                    "and step and synchronize of the optimizer in the same order"
                )
            self._compare_keywords(message, known)
        self._transport.flush()  # of the step before: all of it has been read
        for rank in self._after:
            self._transport.send_control(message, rank)
        return int(message[1]), int(message[2])

    def _compare_keywords(self, message: Tensor, known: tuple[int, ...]) -> None:
        message[3:] |= torch.tensor(known[2:])
        both = int(message[3] & message[4])
        for name, bit in self._numbers.items():
            if both & bit:
                raise UsageError(
                    f"keyword {name!r} was given to some ranks only, although layers on others up "
                    f"to rank {self._transport.rank} take it: give it to all, or to none"
                )
