"""How much of the backward of each stage of the reference model can W do?"""

from collections.abc import Iterator, Sequence

import torch

from zerobubble.autograd import split_report
from zerobubble.ir import Kind, Schedule
from zerobubble.runtime.partition import StageModule
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers


def split_lines(
    config: ModelConfig, schedule: Schedule, layers_of_stage: Sequence[range]
) -> Iterator[str]:
    """Yield a line for each stage whose W runs apart from B, without memory or time for tensors.

    >>> import zerobubble as zb
    >>> schedule = zb.build("zb-h1", num_ranks=2, num_microbatches=2)
    >>> config = ModelConfig(layers=2, dim=8, heads=2)
    >>> print(*split_lines(config, schedule, [range(2), range(2, 4)]), sep="\\n")
    stage 0: 100% of parameter-gradient FLOPs in W; norms in B
    stage 1: 100% of parameter-gradient FLOPs in W; norms in B
    """
    for stage in sorted(_split_stages(schedule)):
        yield f"stage {stage}: {_summary(config, layers_of_stage[stage])}"


def _split_stages(schedule: Schedule) -> set[int]:
    stages: set[int] = set()
    for order in schedule.orders:
        kinds, of_stage, _ = schedule.fields(order)
        stages.update(of_stage[kinds == Kind.W].tolist())
    return stages


def _summary(config: ModelConfig, numbers: range) -> str:
    builders = build_layers(config)
    with torch.device("meta"):
        module = StageModule({number: builders[number]() for number in numbers})
        if numbers.start == 0:
            x = torch.zeros(1, config.sequence, dtype=torch.int64)
        else:
            x = torch.zeros(1, config.sequence, config.dim, requires_grad=True)
    return split_report(module, x).summary
