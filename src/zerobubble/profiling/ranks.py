"""How do the ranks measure at the same time, and agree on what they found?"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import torch

from zerobubble.runtime.transport import Transport

_MOST_ROUNDS = 200
_NUM_WARM_UP = 2


class Ranks:
    """All ranks, which share memory bandwidth and caches if they are on one machine.

    Args:
        transport: the connections of this rank.
        seconds: about how long one thing is measured.
        least_rounds: how often at least.
    """

    def __init__(self, transport: Transport, seconds: float, least_rounds: int) -> None:
        self.transport = transport
        self._seconds = seconds
        self._least_rounds = least_rounds

    def repeat(self, kinds: Sequence[Callable[[], object]], clear: Callable[[], None]) -> None:
        """Run rounds on all ranks at once, equally many on each, after some that do not count.

        Rounds of several kinds take turns, in one order and then in the other, so that whatever
        else the machine does meets all kinds alike.
        """
        self.barrier()
        for _ in range(_NUM_WARM_UP):
            began = perf_counter()
            self._turn(kinds)
            seconds = (perf_counter() - began) / len(kinds)
        slowest = max(self.transport.share_object(seconds))
        num_rounds = max(self._least_rounds, min(_MOST_ROUNDS, int(self._seconds / slowest)))
        clear()
        for number in range(num_rounds):
            self._turn(kinds[::-1] if number % 2 else kinds)

    def _turn(self, kinds: Sequence[Callable[[], object]]) -> None:
        for round_of in kinds:
            round_of()
        self._finish()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.transport.share_object(None)

    def medians(self, values: Mapping[str, float]) -> dict[str, float]:
        """Give the median over the ranks of each value, the same on every rank."""
        of_ranks = self.transport.share_object(dict(values))
        return {name: median(each[name] for each in of_ranks) for name in values}

    def _finish(self) -> None:
        if self.transport.device.type == "cuda":
            torch.cuda.synchronize(self.transport.device)
