"""How do all ranks learn the loss of a step without waiting for each other?

The rank of the last stage sends it as soon as it is known; the others have posted its receive when
they began the step, so that the sender never waits, and read it when their own part is done.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from zerobubble.runtime.transport import Transport, Work

LOSS_TAG = 1


class LossReport:
    """Carries one scalar a step from one rank to all others.

    On CUDA it is a broadcast in a group of its own, so that no stream of the sender waits.

    Args:
        transport: the connections of this rank.
        holder: the rank that holds the last stage.
    """

    def __init__(self, transport: Transport, holder: int) -> None:
        self.holder = holder
        self._transport = transport
        self._is_on_cpu = transport.device.type == "cpu"
        self._peers = [rank for rank in range(transport.num_ranks) if rank != holder]
        self._group = None if self._is_on_cpu or not self._peers else transport.connect_all()
        self._loss = torch.zeros((), device=transport.device)
        self._works: list[Work] = []

    def expect(self) -> None:
        """Begin a step: post the receive."""
        self._loss = torch.zeros((), device=self._transport.device)
        if self._is_on_cpu and self._transport.rank != self.holder:
            self._works = [self._transport.start_receive(self._loss, self.holder, LOSS_TAG)]

    def send(self, loss: Tensor) -> None:
        """Start to send the loss to all others."""
        self._finish()  # on CUDA, of the step before: it has been read long ago
        self._loss = loss.float().reshape(())
        if self._is_on_cpu:
            start = self._transport.start_send
            self._works = [start(self._loss, peer, LOSS_TAG) for peer in self._peers]
        else:
            self._broadcast()

    def wait(self) -> Tensor:
        """End a step: give the loss, when all has been sent or received."""
        if self._is_on_cpu:
            self._finish()
        elif self._transport.rank != self.holder:
            self._broadcast()
            self._finish()
        return self._loss

    def _broadcast(self) -> None:
        if self._group is not None:
            work = dist.broadcast(self._loss, self.holder, group=self._group, async_op=True)
            self._works.append(work)

    def _finish(self) -> None:
        self._transport.wait(self._works)
        self._works.clear()
