"""Write an interactive page of up to four schedules or measured runs."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from zerobubble.cli._arguments import (
    BandwidthFlag,
    CostsFlag,
    Json,
    MemoryFlag,
    Microbatches,
    Ranks,
    ReplayFlag,
    Sources,
    StepFlag,
)
from zerobubble.cli._measured import choose_step, find_run
from zerobubble.cli._page import save_page
from zerobubble.cli._parse import parse
from zerobubble.cli._report import facts_row, print_json, row, shortened, tell_of_free_copies
from zerobubble.cli._resolve import must_agree, read_costs, read_memory, resolve_asked
from zerobubble.cli._writing import PAGE, Target, require_places
from zerobubble.errors import UsageError
from zerobubble.measured import MeasuredRun
from zerobubble.verify import verify
from zerobubble.view.html import MOST_PANELS, Panel
from zerobubble.view.overlay import overlay


@dataclass(frozen=True)
class View:
    """Write an interactive page of up to four schedules or measured runs."""

    files: Sources = None
    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = ""
    memory: MemoryFlag = None
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    step: StepFlag = None
    out: Annotated[str, arg(name="out", metavar="FILE", help="where the page goes")] = "view.html"
    open: Annotated[bool, arg(name="open", help="open the page in the browser")] = False
    json: Json = False


def run(argv: Sequence[str]) -> int:
    """Write the page of what was asked for, and say where it is or what it shows."""
    asked = parse(View, argv, command="view")
    files = asked.files or ()
    if not 1 <= len(files) <= MOST_PANELS:
        raise UsageError(f"view takes 1 to {MOST_PANELS} schedules or runs, not {len(files)}")
    require_places(Target("--out", asked.out, PAGE))
    panels = [_panel(file, asked) for file in files]
    if asked.step is not None and not any(panel.measured for panel in panels):
        raise UsageError("none of these is a measured run: leave out --step")
    panels = _on_one_axis(panels, files, asked)
    save_page(panels, asked.out)
    if asked.json:
        print_json({"page": asked.out, "runs": [each for p in panels for each in _rows(p)]})
    else:
        print(f"{asked.out} shows {', '.join(shortened(panel.schedule.name) for panel in panels)}")
        tell_of_free_copies(next(iter(panel.facts())).timeline for panel in panels)
    if asked.open:
        webbrowser.open(Path(asked.out).resolve().as_uri())
    return 0


def _on_one_axis(panels: Sequence[Panel], files: Sequence[str], asked: View) -> list[Panel]:
    """Read the costs of schedules as ms beside a run; those that were not given are not ms."""
    if not any(panel.measured for panel in panels):
        return list(panels)
    simulated = [file for file, panel in zip(files, panels, strict=True) if not panel.measured]
    if simulated and not asked.costs:
        raise UsageError(
            f"a run is measured in ms, and {simulated[0]} has no times in ms: give --costs in ms"
        )
    return [replace(panel, unit="ms") for panel in panels]


def _rows(panel: Panel) -> list[dict[str, Any]]:
    """Collect the numbers of what a panel shows; a plan has no step."""
    steps = (None, panel.measured and panel.measured.number)
    return [
        {"step": step} | row(facts.timeline) | facts_row(facts)
        for step, facts in zip(steps, panel.facts(), strict=False)
    ]


def _panel(file: str, asked: View) -> Panel:
    measured = find_run(file)
    if measured is not None:
        return _overlay(file, measured, asked)
    schedule, costs = resolve_asked(file, asked)
    limits = read_memory(asked.memory, schedule.num_ranks)
    verify(schedule, costs, limits)
    return Panel(schedule, costs, limits)


def _overlay(file: str, measured: MeasuredRun, asked: View) -> Panel:
    schedule = measured.schedule
    must_agree(file, "ranks", "-p", schedule.num_ranks, asked.ranks)
    must_agree(file, "microbatches", "-m", schedule.num_microbatches, asked.microbatches)
    run = asked.offload_bandwidth, asked.recompute
    if not asked.costs and run != (None, "off"):
        raise UsageError(
            f"{file} was measured, and holds what its copies and ops were planned to take: give "
            "--costs too, or leave out --offload-bandwidth and --recompute"
        )
    costs = read_costs(asked.costs, schedule.placement, *run) if asked.costs else None
    limits = read_memory(asked.memory, schedule.num_ranks)
    return overlay(measured, choose_step(measured, file, asked.step), costs, limits)
