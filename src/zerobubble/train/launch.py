"""How are the ranks of a run started on this machine, and how is the first failure reported?"""

import ctypes
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from zerobubble.errors import PipelineError

_SET_PARENT_DEATH_SIGNAL = 1


def launch(command: Sequence[Any], num_ranks: int, threads: int) -> dict[int, Any]:
    """Run a command once for each rank and wait for all of them.

    This is what ``torchrun --standalone`` does. As soon as one process fails, all are ended.

    Args:
        command: a program and its arguments, or a function of a module and its arguments.
        num_ranks: how many processes to start.
        threads: how many each may use.

    Returns:
        What the function returned, by rank.

    Raises:
        PipelineError: a process failed; the message is that of the first one to fail.
        KeyboardInterrupt: the launch was interrupted or asked to end; all processes have ended.
    """
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id="zerobubble",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        results: dict[int, Any] = elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        raise PipelineError(_describe(error)) from None
    except SignalException:
        raise KeyboardInterrupt from None
    return results


def _describe(error: ChildFailedError) -> str:
    """Name the cause: a rank that was killed cannot report, but those that lost it do."""
    failures: dict[int, ProcessFailure] = error.failures
    by_signal = {rank: -f.exitcode for rank, f in failures.items() if f.exitcode < 0}
    killed = {rank: n for rank, n in by_signal.items() if n != signal.SIGTERM}
    reported = [f for rank, f in failures.items() if rank not in by_signal]
    if killed or not reported:  # the launcher itself ends ranks with SIGTERM
        rank, number = next(iter((killed or by_signal).items()))
        return f"rank {rank} was ended by {_signal_name(number)}"
    first = min(reported, key=lambda failure: failure.timestamp)
    message = first.error_file_data.get("message", first.message)
    text = str(message["message"] if isinstance(message, dict) else message)
    return re.sub(r"^\w+Error: ", "", text)


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def report_failure(error: Exception) -> None:
    """Tell the launcher, if there is one, why this rank fails."""
    handler = ErrorHandler()
    handler.record_exception(error)


def end_with_launcher() -> None:
    """Ask the system to end this process when the one that started it ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
