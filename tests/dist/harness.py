"""How does a test start the processes of a pipeline, and what became of each?

Processes are forked from a server that has imported torch, so that a launch takes a fraction of a
second. As under torchrun, the store through which they find each other lives outside of them.
"""

import multiprocessing
import os
import pickle
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch._dynamo", "torch._inductor", "zerobubble.runtime", "tests.dist.models", "tests.dist.cases"]
)


@dataclass
class Outcome:
    """What one process left behind.

    Attributes:
        value: what the worker returned.
        error: type and message of the exception that ended it, or None.
        traceback: the same in full, for people.
        exit_code: 0, 1 after an exception, or minus the number of a signal.
        seconds: from the launch to the end of the process.
        timed_out: whether the harness had to kill it.
    """

    value: object = None
    error: tuple[str, str] | None = None
    traceback: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    timed_out: bool = False


def launch(worker, num_ranks, *args, timeout=90.0, world_size=None):
    """Run ``worker(rank, *args)`` in one process a rank; return one Outcome a rank.

    Whatever still runs after ``timeout`` seconds is killed.
    """
    world_size = world_size or num_ranks
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    pairs = [_context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = [
        _context.Process(
            target=_main, args=(worker, rank, world_size, store.port, sender, args), daemon=True
        )
        for rank, (_, sender) in enumerate(pairs)
    ]
    began = time.monotonic()
    for process in processes:
        process.start()
    for _, sender in pairs:
        sender.close()
    return _collect(processes, [receiver for receiver, _ in pairs], began, timeout)


def _collect(processes, receivers, began, timeout):
    outcomes = [Outcome() for _ in processes]
    waiting = {receiver: outcome for receiver, outcome in zip(receivers, outcomes, strict=True)}
    running = dict(zip((process.sentinel for process in processes), range(len(processes))))
    while running:
        left = began + timeout - time.monotonic()
        ready = multiprocessing.connection.wait([*waiting, *running], timeout=max(left, 0))
        for receiver in [r for r in ready if r in waiting]:
            outcome = waiting.pop(receiver)
            try:
                outcome.value, outcome.error, outcome.traceback = pickle.loads(receiver.recv_bytes())
            except EOFError:
                outcome.traceback = "the process ended without a word"
        for sentinel in [s for s in ready if s in running]:
            rank = running.pop(sentinel)
            outcomes[rank].seconds = time.monotonic() - began
        if not ready:
            for rank in running.values():
                outcomes[rank].timed_out = True
                outcomes[rank].seconds = time.monotonic() - began
                processes[rank].kill()
            break
    for process, outcome in zip(processes, outcomes, strict=True):
        process.join()
        outcome.exit_code = process.exitcode
    return outcomes


def values(outcomes):
    """Return what the workers returned, or fail with what went wrong in each of them."""
    failed = [
        f"rank {rank} (exit {o.exit_code}{', killed after the timeout' if o.timed_out else ''}):\n"
        f"{o.traceback}"
        for rank, o in enumerate(outcomes)
        if o.error or o.timed_out or o.exit_code
    ]
    assert not failed, "\n".join(failed)
    return [outcome.value for outcome in outcomes]


def attempt(function, *args, **options):
    """Return what a function returns or, if it raises, type and message of the exception."""
    try:
        return function(*args, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def _main(worker, rank, world_size, port, sender, args):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    torch.set_num_threads(1)
    value, error, text = None, None, ""
    try:
        value = worker(rank, *args)
    except Exception as raised:
        error, text = (type(raised).__name__, str(raised)), traceback.format_exc()
    sender.send_bytes(pickle.dumps((value, error, text)))
    sender.close()
    if error:
        raise SystemExit(1)
