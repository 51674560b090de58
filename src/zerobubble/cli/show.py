"""Draw a schedule's timeline and its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from zerobubble.cli._arguments import (
    UNIT_COSTS,
    BandwidthFlag,
    CostsFlag,
    Html,
    Json,
    MemoryFlag,
    Microbatches,
    Out,
    Ranks,
    ReplayFlag,
    Spec,
    Svg,
)
from zerobubble.cli._page import save_page
from zerobubble.cli._parse import parse
from zerobubble.cli._report import facts_of, facts_row, print_json, print_timeline, row
from zerobubble.cli._resolve import read_memory, resolve_asked
from zerobubble.cli._writing import PAGE, PICTURE, SCHEDULE, Target, require_places
from zerobubble.formats.json import save
from zerobubble.formats.reading import write_text
from zerobubble.simulate import simulate
from zerobubble.verify import verify
from zerobubble.view.html import Panel
from zerobubble.view.svg import draw_svg


@dataclass(frozen=True)
class Show:
    """Draw a schedule's timeline and its numbers."""

    schedule: Spec
    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = UNIT_COSTS
    memory: MemoryFlag = None
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    json: Json = False
    out: Out = None
    svg: Svg = None
    html: Html = None


def run(argv: Sequence[str]) -> int:
    """Verify and simulate a schedule, print it, and write it to files if asked."""
    asked = parse(Show, argv, command="show")
    require_places(
        Target("--out", asked.out, SCHEDULE),
        Target("--svg", asked.svg, PICTURE),
        Target("--html", asked.html, PAGE),
    )
    schedule, costs = resolve_asked(asked.schedule, asked)
    limits = read_memory(asked.memory, schedule.num_ranks)
    verify(schedule, costs, limits)
    timeline = simulate(schedule, costs)
    if asked.out is not None:
        save(schedule, asked.out)
    if asked.svg is not None:
        write_text(asked.svg, draw_svg(timeline))
    if asked.html is not None:
        save_page([Panel(schedule, costs, limits)], asked.html)
    if asked.json:
        print_json(row(timeline) | facts_row(facts_of(timeline, limits)))
    else:
        print_timeline(timeline, limits)
    return 0
