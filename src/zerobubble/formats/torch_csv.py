"""How does torch.distributed.pipelining read a schedule? As its compute-only CSV.

One line for each rank, one cell for each op: stage, kind, microbatch, as in ``0F1``. PyTorch calls
the input gradient ``I``, the weight gradient ``W`` and the full backward ``B``; this is the only
module that knows. ``_PipelineScheduleRuntime._load_csv`` reads it and adds the communication.
"""

from pathlib import Path

from zerobubble.errors import ScheduleError
from zerobubble.formats.reading import write_text
from zerobubble.ir import Kind, Op, Schedule

_LETTERS = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}


def dumps(schedule: Schedule) -> str:
    """Write a schedule as PyTorch's compute-only CSV.

    Raises:
        ScheduleError: activations are offloaded or computed again, for which PyTorch has no word.

    >>> from zerobubble import build
    >>> print(dumps(build("zb-h1", num_ranks=2, num_microbatches=2)), end="")
    0F0,0F1,0I0,0W0,0I1,0W1
    1F0,1I0,1F1,1I1,1W0,1W1
    """
    rows = (map(_cell, schedule.ops(rank)) for rank in range(schedule.num_ranks))
    return "".join(f"{','.join(row)}\n" for row in rows)


def save(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule to a CSV file.

    Raises:
        ScheduleError: as for ``dumps``.
        UsageError: the file cannot be written.
    """
    write_text(path, dumps(schedule))


def _cell(op: Op) -> str:
    if op.kind not in _LETTERS:
        raise ScheduleError(
            f"PyTorch's CSV has no word for {op}: export a schedule that keeps all activations, "
            "without O, L and R"
        )
    return f"{op.stage}{_LETTERS[op.kind]}{op.microbatch}"
