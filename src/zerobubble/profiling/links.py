"""How fast do tensors travel between the ranks, and to the host and back?"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from time import perf_counter

import numpy as np
import torch

from zerobubble.profile import Link
from zerobubble.runtime.transport import Transport

_SIZES = (1024, 64 * 1024, 1024**2, 4 * 1024**2)
_HOST_SIZES = (64 * 1024, 1024**2, 4 * 1024**2, 16 * 1024**2)
_NUM_TRIPS = 15
_NUM_WARM_UP = 3
_DIFFERENT = 1.5


def all_pairs(num_ranks: int) -> set[tuple[int, int]]:
    """List every sender with every reader."""
    ranks = range(num_ranks)
    return {(a, b) for a in ranks for b in ranks if a != b}


def measure_links(transport: Transport) -> tuple[Link, dict[tuple[int, int], Link]]:
    """Time round trips of messages of several sizes between every two ranks, one after the other.

    Returns:
        The median link, and those that take clearly longer or shorter for a message of 1 MiB.
    """
    own: dict[tuple[int, int], Link] = {}
    for pair in combinations(range(transport.num_ranks), 2):
        transport.share_object(None)
        if transport.rank in pair:
            trips = [_trip_ms(transport, pair, size) for size in _SIZES]
            if transport.rank == pair[0]:
                own[pair] = fit_link(_SIZES, trips)
    found = {pair: link for part in transport.share_object(own) for pair, link in part.items()}
    if not found:
        return Link(), {}
    typical = Link(
        median(link.latency_ms for link in found.values()),
        median(link.bytes_per_ms for link in found.values()),
    )
    return typical, {pair: link for pair, link in found.items() if _differs(link, typical)}


def measure_host_link(device: torch.device) -> Link:
    """Time copies of several sizes between this rank's device and its host; the slower way counts.

    On a CPU, that is from one part of its memory to another.
    """
    pinned = device.type == "cuda"
    times = []
    for num_bytes in _HOST_SIZES:
        there = torch.ones(num_bytes, dtype=torch.uint8, device=device)
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        times.append(max(_copy_ms(host, there), _copy_ms(there, host)))
    return fit_link(_HOST_SIZES, times)


def _copy_ms(to: torch.Tensor, source: torch.Tensor) -> float:
    times = []
    for _ in range(_NUM_WARM_UP + _NUM_TRIPS):
        begin = perf_counter()
        to.copy_(source, non_blocking=True)
        for tensor in (to, source):
            if tensor.is_cuda:
                torch.cuda.synchronize(tensor.device)
        times.append((perf_counter() - begin) * 1e3)
    return median(times[_NUM_WARM_UP:])


def fit_link(sizes: Sequence[int], times_ms: Sequence[float]) -> Link:
    """Fit a line through times over bytes, every time weighted by what it is itself.

    >>> link = fit_link([0, 1000, 2000], [1.0, 2.0, 3.0])
    >>> round(link.latency_ms, 9), round(link.bytes_per_ms, 6)
    (1.0, 1000.0)
    """
    x, y = np.array(sizes, dtype=float), np.array(times_ms)
    slope, latency = np.polyfit(x, y, 1, w=1 / np.maximum(y, 1e-9))
    if slope <= 0:
        return Link(float(np.mean(y)))
    return Link(max(float(latency), 0.0), 1 / float(slope))


def _trip_ms(transport: Transport, pair: tuple[int, int], num_bytes: int) -> float:
    """Give half of the median time of a message there and back, both ends with a fresh buffer."""
    peer = pair[1] if transport.rank == pair[0] else pair[0]
    times = []
    for number in range(_NUM_WARM_UP + _NUM_TRIPS):
        begin = perf_counter()
        if transport.rank == pair[0]:
            _send(transport, peer, num_bytes, 2 * number)
            _receive(transport, peer, num_bytes, 2 * number + 1)
        else:
            _receive(transport, peer, num_bytes, 2 * number)
            _send(transport, peer, num_bytes, 2 * number + 1)
        times.append((perf_counter() - begin) * 1e3 / 2)
    return median(times[_NUM_WARM_UP:])


def _send(transport: Transport, peer: int, num_bytes: int, tag: int) -> None:
    message = torch.ones(num_bytes, dtype=torch.uint8, device=transport.device)
    transport.wait(transport.send([message], peer, tag))
    _finish(transport)


def _receive(transport: Transport, peer: int, num_bytes: int, tag: int) -> None:
    buffer = torch.empty(num_bytes, dtype=torch.uint8, device=transport.device)
    transport.wait(transport.receive([buffer], peer, tag))
    _finish(transport)


def _finish(transport: Transport) -> None:
    if transport.device.type == "cuda":
        torch.cuda.synchronize(transport.device)


def _differs(link: Link, typical: Link) -> bool:
    ratio = link.transfer_ms(2**20) / max(typical.transfer_ms(2**20), 1e-9)
    return not 1 / _DIFFERENT < ratio < _DIFFERENT
