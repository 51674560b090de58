"""Plan how to train a model: layers, placement, microbatches and schedule within the memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Union

from tyro.conf import arg

from zerobubble.cli._arguments import EffortFlag, Json, Ranks
from zerobubble.cli._bytes import read_bytes
from zerobubble.cli._counts import read_count, read_counts
from zerobubble.cli._parse import parse
from zerobubble.cli._profile_source import read_or_estimate
from zerobubble.cli._report import print_json
from zerobubble.cli._writing import PLAN, Target, require_places
from zerobubble.errors import UsageError
from zerobubble.plan import make_plan
from zerobubble.plan.file import save
from zerobubble.profile import Link
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
    config: Annotated[
        str, arg(metavar="FILE", help="JSON file with the configuration of --model hf:TYPE")
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
    offload: Annotated[
        Literal["off", "auto", "all"],
        arg(help="move activations to the host and back: where it gains anything, or all"),
    ] = "off"
    offload_bandwidth: Annotated[
        str,
        arg(
            metavar="BYTES",
            help="as in 15GB: what is copied to the host in a second, and as much back; by "
            "default as profiled",
        ),
    ] = ""
    recompute: Annotated[
        Literal["off", "auto", "full"],
        arg(help="run forwards again before their backwards: where it gains anything, or all"),
    ] = "off"
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
    batch_size = read_count("--batch-size", asked.batch_size)
    words = asked.microbatch_size
    sizes = read_counts("--microbatch-size", words) if words else None
    sequence = read_count("--sequence", asked.sequence) if asked.sequence else None
    memory = read_bytes(asked.memory, asked.ranks) if asked.memory else None
    require_places(Target("--out", asked.out, PLAN))
    model = (asked.model, asked.config, asked.device_spec)
    profile = read_or_estimate(asked.profile, *model, sizes, sequence, asked.validate)
    if asked.offload_bandwidth:
        (rate,) = read_bytes(asked.offload_bandwidth, 1, "--offload-bandwidth")
        profile = replace(profile, host=Link(profile.host.latency_ms, rate / 1e3))
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
        asked.offload,
        asked.recompute,
    )
    if asked.out is not None:
        save(plan, asked.out)
    ranks = ranks_of_plan(plan, profile)
    if asked.json:
        print_json(row_of_plan(plan, ranks, sequence))
    else:
        print(draw_plan(plan, ranks, sequence))
    return 0
