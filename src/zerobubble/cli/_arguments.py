"""Which flags do the commands share? One type for each flag, with its short name and help.

``Union[None, X]`` is not ``X | None`` here: tyro checks defaults against the latter, and against
``tuple[...]``, with a library that takes longer to import than all the rest.
"""

# ruff: noqa: UP007, RUF036

from typing import Annotated, Literal, Union

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from zerobubble.cli._counts import is_count
from zerobubble.formats.reading import show_value


def _count(words: list[str]) -> int:
    if not is_count(words[0]):
        raise ValueError(f"write a whole number of 1 or more, not {show_value(words[0])}")
    return int(words[0])


_COUNT = PrimitiveConstructorSpec[Union[None, int]](
    nargs=1,
    metavar="INT",
    instance_from_str=_count,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)

_NAMES = PrimitiveConstructorSpec[Union[None, tuple[str, ...]]](
    nargs="*",
    metavar="SCHEDULE ...",
    instance_from_str=tuple,
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda value: list(value or ()),
)

_SPEC_HELP = "a name such as zb-h1 or interleaved:v=4, a JSON file, or my_file.py:my_schedule"
Spec = Annotated[Positional[str], arg(metavar="SCHEDULE", help=_SPEC_HELP)]
Specs = Annotated[Positional[Union[None, tuple[str, ...]]], _NAMES, arg(help=_SPEC_HELP)]
Ranks = Annotated[
    Union[None, int], _COUNT, arg(name="ranks", aliases=("-p",), help="number of ranks")
]
Microbatches = Annotated[
    Union[None, int],
    _COUNT,
    arg(name="microbatches", aliases=("-m",), help="number of microbatches"),
]
CostsFlag = Annotated[
    str,
    arg(
        name="costs",
        metavar="F,B,W,COMM[,KEPT]",
        help="times of one rank's whole share and of one hop, and the part of the activation "
        "memory that W still needs after B; or a JSON file with times for each stage",
    ),
]
MemoryFlag = Annotated[
    Union[None, str],
    arg(
        name="memory",
        metavar="LIMIT[,LIMIT...]",
        help="limit of the activation memory of every rank, or one limit for each, in microbatches",
    ),
]
BandwidthFlag = Annotated[
    Union[None, str],
    arg(
        name="offload-bandwidth",
        metavar="SPEED",
        help="how many microbatches a copy engine moves to the host, or back, in a unit of time",
    ),
]
ReplayFlag = Annotated[
    Literal["off", "light"],
    arg(
        name="recompute",
        help="light: B computes norms, activation functions and dropout again, as the costs say",
    ),
]
OffloadFlag = Annotated[
    Literal["off", "auto", "all"],
    arg(name="offload", help="offload no stage, those where it is best, or all of them"),
]
RecomputeFlag = Annotated[
    Literal["off", "auto", "light", "full"],
    arg(
        name="recompute",
        help="compute nothing again, norms, activation functions and dropout (light), all stages "
        "(full), or what is best, stage by stage",
    ),
]
MemoryRangeFlag = Annotated[
    Union[None, str],
    arg(
        name="memory",
        metavar="[FROM,]TO",
        help="memory limits to look at, in microbatches; by default from the smallest possible to "
        "twice the number of ranks",
    ),
]
ObjectiveFlag = Annotated[
    Literal["span", "makespan"],
    arg(name="objective", help="span if steps follow each other without a barrier"),
]
EffortFlag = Annotated[
    Literal["quick", "default", "thorough"], arg(name="effort", help="how long to search")
]
StepFlag = Annotated[
    Union[None, int], _COUNT, arg(name="step", help="measured step to show; by default the last")
]
Sources = Annotated[
    Positional[Union[None, tuple[str, ...]]],
    _NAMES,
    arg(help="schedules as for show, folders of training runs, or their timeline.json"),
]
Json = Annotated[bool, arg(name="json", help="print one JSON object")]
Out = Annotated[
    Union[None, str], arg(name="out", metavar="FILE", help="write the schedule as JSON")
]
Html = Annotated[
    Union[None, str], arg(name="html", metavar="FILE", help="write an interactive page")
]

Svg = Annotated[
    Union[None, str], arg(name="svg", metavar="FILE", help="write the timeline as an SVG picture")
]

UNIT_COSTS = "1,1,1,0"
