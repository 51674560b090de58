"""How does a benchmark run on several ranks? Processes over gloo, one thread each."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
TIMEOUT_S = 60.0


def on_ranks(function: Callable[[], T], num_ranks: int) -> list[T]:
    """Call a function of a module in one process for each rank; return what the ranks return."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(num_ranks, mp_context=get_context("spawn")) as pool,
    ):
        store = f"file://{folder}/store"
        calls = [
            pool.submit(_join_and_call, function, r, num_ranks, store) for r in range(num_ranks)
        ]
        return [call.result() for call in calls]


def _join_and_call(function: Callable[[], T], rank: int, num_ranks: int, store: str) -> T:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=store,
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        return function()
    finally:
        dist.destroy_process_group()
