"""How much of the backward of each stage of a model can W do?"""

from collections.abc import Iterator, Sequence

from zerobubble.autograd import split_report
from zerobubble.ir import Schedule
from zerobubble.runtime.layered import LayeredModel
from zerobubble.train.layers import stages_without_memory


def split_lines(
    model: LayeredModel, schedule: Schedule, layers_of_stage: Sequence[range]
) -> Iterator[str]:
    """Yield a line for each stage whose W runs apart from B, without memory or time for tensors.

    >>> import zerobubble as zb
    >>> from zerobubble.train.config import ModelConfig
    >>> from zerobubble.train.model import reference_model
    >>> schedule = zb.build("zb-h1", num_ranks=2, num_microbatches=2)
    >>> model = reference_model(ModelConfig(layers=2, dim=8, heads=2))
    >>> print(*split_lines(model, schedule, [range(2), range(2, 4)]), sep="\\n")
    stage 0: 100% of parameter-gradient FLOPs in W; norms in B
    stage 1: 100% of parameter-gradient FLOPs in W; norms in B
    """
    stages = schedule.split_stages()
    for stage, (module, x) in enumerate(stages_without_memory(model, layers_of_stage)):
        if stage in stages:
            yield f"stage {stage}: {split_report(module, x).summary}"
