"""Write a schedule or a measured run for other programs: Perfetto, PyTorch, a paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Union

from tyro.conf import Positional, arg

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    BandwidthFlag,
    CostsFlag,
    Microbatches,
    Ranks,
    ReplayFlag,
    Svg,
)
from zerobubble.cli._measured import choose_step, find_run
from zerobubble.cli._parse import parse
from zerobubble.cli._report import tell_of_free_copies
from zerobubble.cli._resolve import resolve_asked
from zerobubble.cli._writing import CSV, PICTURE, TRACE, Target, require_places
from zerobubble.errors import UsageError
from zerobubble.formats import chrome, torch_csv
from zerobubble.formats.reading import write_text
from zerobubble.measured import MeasuredStep
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import verify
from zerobubble.view.svg import draw_svg


@dataclass(frozen=True)
class Export:
    """Write a schedule or a measured run for other programs: Perfetto, PyTorch, a paper."""

    schedule: Annotated[
        Positional[str],
        arg(
            metavar="SCHEDULE|RUN",
            help="a name such as zb-h1, a schedule file, the folder of a training run, or its "
            "timeline.json",
        ),
    ]
    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    step: Annotated[
        Union[None, int],  # noqa: UP007, RUF036 (as in _arguments)
        arg(help="which step of a measured run; by default the last one that was recorded"),
    ] = None
    trace: Annotated[
        Union[None, str],  # noqa: UP007, RUF036
        arg(metavar="FILE", help="write a trace for Perfetto (ui.perfetto.dev)"),
    ] = None
    csv: Annotated[
        Union[None, str],  # noqa: UP007, RUF036
        arg(metavar="FILE", help="write the compute-only CSV of torch.distributed.pipelining"),
    ] = None
    svg: Svg = None


def run(argv: Sequence[str]) -> int:
    """Write every file that is asked for."""
    asked = parse(Export, argv, command="export")
    if (asked.trace, asked.csv, asked.svg) == (None, None, None):
        raise UsageError("there is nothing to write: give --trace FILE, --csv FILE or --svg FILE")
    require_places(
        Target("--trace", asked.trace, TRACE),
        Target("--csv", asked.csv, CSV),
        Target("--svg", asked.svg, PICTURE),
    )
    shown = _find(asked)
    is_measured = isinstance(shown, MeasuredStep)
    timeline = shown.timeline if isinstance(shown, MeasuredStep) else shown
    csv = torch_csv.dumps(timeline.schedule) if asked.csv else ""
    if asked.trace:
        write_text(asked.trace, chrome.dumps(shown))
    if asked.csv:
        write_text(asked.csv, csv)
    if asked.svg:
        write_text(asked.svg, draw_svg(timeline, unit="ms" if is_measured else ""))
    if not is_measured:
        tell_of_free_copies([timeline])
    return 0


def _find(asked: Export) -> Timeline | MeasuredStep:
    """Simulate the schedule, or read the measured step, that the arguments mean."""
    measured = find_run(asked.schedule)
    if measured is None:
        if asked.step is not None:
            raise UsageError(f"{asked.schedule} is no measured run: leave out --step")
        schedule, costs = resolve_asked(asked.schedule, asked)
        verify(schedule, costs)
        return simulate(schedule, costs)
    given = (asked.ranks, asked.microbatches, asked.costs, asked.offload_bandwidth, asked.recompute)
    if given != (None, None, UNIT_COSTS, None, "off"):
        raise UsageError(
            f"{asked.schedule} is a measured run: leave out -p, -m, --costs, --offload-bandwidth "
            "and --recompute"
        )
    return choose_step(measured, asked.schedule, asked.step)
