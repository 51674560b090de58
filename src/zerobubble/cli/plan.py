"""Plan how to train a model: layers, placement, microbatches and schedule within the memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Union

from tyro.conf import arg

from zerobubble.cli._arguments import EffortFlag, Json, Ranks
from zerobubble.cli._bytes import read_bytes
from zerobubble.cli._parse import parse
from zerobubble.cli._profile_source import read_or_estimate
from zerobubble.cli._report import print_json
from zerobubble.cli._writing import PLAN, Target, require_places
from zerobubble.errors import UsageError
from zerobubble.plan import make_plan
from zerobubble.plan.file import save
from zerobubble.view.plan import draw_plan, ranks_of_plan, row_of_plan


@dataclass(frozen=True)
class PlanCommand:
    """Plan how to train a model: layers, placement, microbatches and schedule within the memory.

    What --out writes is what `zerobubble train --plan` runs.
    """

    ranks: Ranks = None
    profile: Annotated[str, arg(metavar="FILE", help="as zerobubble profile has written it")] = ""
    model: Annotated[
        str, arg(metavar="hf:CONFIG|FOLDER", help="estimate a profile of this model")
    ] = ""
    device_spec: Annotated[
        str, arg(metavar="h100|a100|FILE", help="the device of the estimate")
    ] = ""
    batch_size: Annotated[str, arg(metavar="N", help="samples in a step")] = ""
    microbatch_size: Annotated[
        str, arg(metavar="N,N,...", help="in samples; by default all sizes of the profile")
    ] = ""
    memory: Annotated[
        str,
        arg(
            metavar="BYTES[,BYTES...]",
            help="as in 40GiB: limit of every rank, or of each, for parameters, gradients, "
            "optimizer state and activations (bytes, not microbatches as in other commands); by "
            "default the memory of the profiled device",
        ),
    ] = ""
    placement: Annotated[
        str, arg(help="linear, v, looped:2, wave:4 or the rank of each stage; by default all")
    ] = ""
    schedule: Annotated[str, arg(help="plan for this one; by default the best is searched")] = ""
    validate: Annotated[Literal["post", "sync"], arg(help="how the optimizer steps")] = "post"
    effort: EffortFlag = "quick"
    sequence: Annotated[str, arg(metavar="N", help="tokens in a sample")] = ""
    json: Json = False
    out: Annotated[
        Union[None, str],  # noqa: UP007, RUF036 (as in _arguments)
        arg(metavar="FILE", help="write the plan as JSON"),
    ] = None


def run(argv: Sequence[str]) -> int:
    """Plan, print the plan, and write it if asked."""
    asked = parse(PlanCommand, argv, command="plan")
    if asked.ranks is None:
        raise UsageError("plan needs the number of ranks: -p is missing")
    if not asked.batch_size:
        raise UsageError("plan needs the samples in a step: --batch-size is missing")
    [batch_size] = _counts("--batch-size", asked.batch_size, most=1)
    sizes = _counts("--microbatch-size", asked.microbatch_size) if asked.microbatch_size else None
    sequence = _counts("--sequence", asked.sequence, most=1)[0] if asked.sequence else None
    memory = read_bytes(asked.memory, asked.ranks) if asked.memory else None
    require_places(Target("--out", asked.out, PLAN))
    profile = read_or_estimate(
        asked.profile, asked.model, asked.device_spec, sizes, sequence, asked.validate
    )
    plan = make_plan(
        profile,
        asked.ranks,
        batch_size,
        memory,
        sizes,
        asked.placement or None,
        asked.validate,
        asked.effort,
        asked.schedule or None,
    )
    if asked.out is not None:
        save(plan, asked.out)
    ranks = ranks_of_plan(plan, profile)
    if asked.json:
        print_json(row_of_plan(plan, ranks, sequence))
    else:
        print(draw_plan(plan, ranks, sequence))
    return 0


def _counts(flag: str, text: str, most: int | None = None) -> list[int]:
    words = text.split(",")
    is_right = all(word.isascii() and word.isdecimal() and int(word) > 0 for word in words)
    if not is_right or (most is not None and len(words) > most):
        kind = "a number of 1 or more" if most == 1 else "numbers of 1 or more, as in 1,2,4"
        raise UsageError(f"{flag} {text!r}: write {kind}")
    return [int(word) for word in words]
