"""How does torch.distributed.pipelining run the same schedule on the same model?"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from zerobubble import Schedule
from zerobubble.formats.torch_csv import save


def stages_of(layers: list[list[nn.Module]], placement: tuple[int, ...]) -> list[PipelineStage]:
    """Make PyTorch's stages of this rank from the layers of every stage of the model."""
    rank, device = dist.get_rank(), torch.device("cpu")
    return [
        PipelineStage(nn.Sequential(*layers[stage]), stage, len(layers), device)
        for stage, holder in enumerate(placement)
        if holder == rank
    ]


def runtime_of(
    schedule: Schedule, stages: list[PipelineStage], loss: Callable[[Tensor, Tensor], Tensor]
) -> _PipelineScheduleRuntime:
    """Make PyTorch's runtime for any schedule, which it reads from a CSV file."""
    runtime = _PipelineScheduleRuntime(
        stages, n_microbatches=schedule.num_microbatches, loss_fn=loss
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        save(schedule, path)
        runtime._load_csv(str(path))
    return runtime


def step_of(
    schedule: Any, stages: list[PipelineStage], x: Tensor, y: Tensor
) -> Callable[[], object]:
    """Give a function that runs a step of one of PyTorch's schedules.

    The batch goes in at the first stage, the target at the last.
    """
    inputs = (x,) if any(stage.is_first for stage in stages) else ()
    is_last = any(stage.is_last for stage in stages)

    def step() -> None:
        losses: list[Tensor] | None = [] if is_last else None
        target = y if is_last else None
        schedule.step(*inputs, target=target, losses=losses, return_outputs=False)

    return step
