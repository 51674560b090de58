"""How do tensors get from one rank to another? Point-to-point over torch.distributed.

Tensors of the model travel in data groups: one tagged gloo group on CPU; on CUDA one NCCL group
for each pair and direction, because NCCL knows no tags and works through a group in order. Small
control messages have a gloo group of their own, where no large tensor is in their way.
"""

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.watch import watch

MAX_TENSORS_PER_MESSAGE = 64


class Work(Protocol):
    """A transfer that has been started."""

    def wait(self) -> Any:
        """Wait for its end; on CUDA only the current stream waits."""


class LostRankError(RuntimeError):
    """The connection to a rank is broken, or it was silent for too long."""

    def __init__(self, peer: int, error: RuntimeError) -> None:
        super().__init__(str(error))
        self.peer = peer


class _Transfer(NamedTuple):
    """A transfer of a small tensor, which it keeps alive and whose error names the peer."""

    work: Work
    peer: int
    tensor: Tensor

    def wait(self) -> None:
        """Wait for its end."""
        try:
            self.work.wait()
        except RuntimeError as error:
            raise LostRankError(self.peer, error) from error


class _Link(NamedTuple):
    """The group in which tensors travel from one rank to another, and their numbers there."""

    group: dist.ProcessGroup
    sender: int
    reader: int


class Transport:
    """The connections of one rank to the others.

    Args:
        device: where the model's tensors live; ``cuda`` uses NCCL.
        num_ranks: expected number of processes.
        pairs: the (sender, reader) pairs between which tensors travel.
        timeout: after how many seconds of silence a peer counts as lost.

    Attributes:
        on_wait: told of every wait for another rank how many seconds it took; None: nobody.

    Raises:
        UsageError: there is another number of processes than ranks.
    """

    def __init__(
        self,
        device: torch.device,
        num_ranks: int,
        pairs: Iterable[tuple[int, int]] = (),
        timeout: float = 600.0,
    ) -> None:
        self.device = device
        self.num_ranks = num_ranks
        self.rank = 0
        self.on_wait: Callable[[float], None] | None = None
        self._outbox: list[Work] = []
        self._limit = limit = timedelta(seconds=timeout)
        num_processes = _num_processes()
        if num_processes != num_ranks and num_processes > 1:
            raise UsageError(
                f"the schedule is for {num_ranks} ranks, but {num_processes} processes run: start "
                "as many processes as ranks"
            )
        if num_processes != num_ranks:
            raise UsageError(
                f"the schedule is for {num_ranks} ranks: start the script with "
                f"torchrun --nproc-per-node {num_ranks}, or initialise torch.distributed first"
            )
        if num_ranks > 1:
            _join(device, limit)
        if dist.is_initialized():
            self.rank = dist.get_rank()
        if num_ranks > 1:
            watch.start(self.rank)
            self._control = dist.new_group(backend="gloo", timeout=limit)
            self._data = self._connect(sorted(pairs), limit)

    def _connect(
        self, pairs: Sequence[tuple[int, int]], limit: timedelta
    ) -> dict[tuple[int, int], _Link]:
        """Make the data groups; all ranks take part in the same order."""
        if self.device.type == "cpu":
            group = dist.new_group(backend="gloo", timeout=limit)
            return {pair: _Link(group, *pair) for pair in pairs}
        links = {}
        for pair in pairs:
            group = dist.new_group(list(pair), backend="nccl", timeout=limit)
            # The first use of an NCCL group waits for both ends: do it here, in one order.
            if self.rank == pair[0]:
                dist.send(torch.zeros(1, device=self.device), pair[1], group=group)
            if self.rank == pair[1]:
                dist.recv(torch.zeros(1, device=self.device), pair[0], group=group)
            if self.rank in pair:
                links[pair] = _Link(group, *(dist.get_group_rank(group, rank) for rank in pair))
        return links

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> list[Work]:
        """Start to send tensors; they must stay as they are until the work has been waited for."""
        group, _, reader = self._data[self.rank, peer]
        # The group's own calls: dist.isend spends longer on its checks than gloo on the message.
        tags = enumerate(tensors, tag * MAX_TENSORS_PER_MESSAGE)
        return [group.send([_real(tensor)], reader, each) for each, tensor in tags]

    def receive(self, tensors: Sequence[Tensor], peer: int, tag: int) -> list[Work]:
        """Start to receive into tensors."""
        group, sender, _ = self._data[peer, self.rank]
        tags = enumerate(tensors, tag * MAX_TENSORS_PER_MESSAGE)
        return [group.recv([_real(tensor)], sender, each) for each, tensor in tags]

    def wait(self, works: Iterable[Work]) -> None:
        """Wait for the end of transfers: the one place where a rank waits for another."""
        before = watch.wait()
        began = time.perf_counter()
        for work in works:
            work.wait()
        watch.resume(before)
        if self.on_wait is not None:
            self.on_wait(time.perf_counter() - began)

    def start_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        """Start to send a small CPU tensor in the control group to a peer that awaits it."""
        return self._start(self._control.send, tensor, peer, tag)

    def start_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        """Start to receive a small CPU tensor in the control group."""
        return self._start(self._control.recv, tensor, peer, tag)

    def _start(
        self,
        transfer: Callable[[list[Tensor], int, int], Work],
        tensor: Tensor,
        peer: int,
        tag: int,
    ) -> Work:
        try:
            return _Transfer(transfer([tensor], peer, tag), peer, tensor)
        except RuntimeError as error:
            raise LostRankError(peer, error) from error

    def send_control(self, tensor: Tensor, peer: int) -> None:
        """Start to send a small CPU tensor in the control group, kept until ``flush``."""
        self._outbox.append(self.start_send(tensor, peer, tag=0))

    def receive_control(self, tensor: Tensor, peer: int) -> Tensor:
        """Wait for a small CPU tensor from a peer."""
        self.wait([self.start_receive(tensor, peer, tag=0)])
        return tensor

    def send_object(self, value: Any, peer: int) -> None:
        """Start to send any picklable value in the control group."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        self.send_control(torch.tensor([data.numel()]), peer)
        self.send_control(data, peer)

    def receive_object(self, peer: int) -> Any:
        """Wait for a value from a peer."""
        size = int(self.receive_control(torch.zeros(1, dtype=torch.int64), peer))
        data = self.receive_control(torch.empty(size, dtype=torch.uint8), peer)
        with warnings.catch_warnings():  # torch warns of its own way to unpickle a TreeSpec
            warnings.simplefilter("ignore", FutureWarning)
            return pickle.loads(data.numpy().tobytes())

    def gather_object(self, value: Any) -> list[Any] | None:
        """Collect one value of every rank on rank 0; the others get None."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] | None = [None] * self.num_ranks if self.rank == 0 else None
        before = watch.wait()
        dist.gather_object(value, values, dst=0, group=self._control)
        watch.resume(before)
        return values

    def share_object(self, value: Any) -> list[Any]:
        """Give every rank one value of each."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        before = watch.wait()
        dist.all_gather_object(values, value, group=self._control)
        watch.resume(before)
        return values

    def connect_all(self) -> dist.ProcessGroup:
        """Make an NCCL group of all ranks, used once, so that its next use waits for nobody."""
        group: dist.ProcessGroup = dist.new_group(backend="nccl", timeout=self._limit)
        dist.broadcast(torch.zeros(1, device=self.device), 0, group=group)
        return group

    def flush(self) -> None:
        """Wait until all control messages have been read, and drop them."""
        self.wait(self._outbox)
        self._outbox.clear()


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _num_processes() -> int:
    """Count the processes that torchrun started, or that have joined already."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def _join(device: torch.device, limit: timedelta) -> None:
    """Join the processes that torchrun started, unless that was done already."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=limit)
