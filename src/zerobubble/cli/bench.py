"""Measure the runtime on emulated stages, beside the simulation."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Union

from tyro.conf import arg

from zerobubble.cli._arguments import (
    BandwidthFlag,
    CostsFlag,
    Json,
    MemoryFlag,
    Microbatches,
    OffloadFlag,
    Ranks,
    ReplayFlag,
)
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json
from zerobubble.cli._resolve import (
    read_costs_to_search,
    read_memory,
    require_counts,
    resolve,
)
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.formats.timeline import save
from zerobubble.ir import Schedule
from zerobubble.measured import MeasuredRun
from zerobubble.search import search
from zerobubble.simulate import simulate
from zerobubble.verify import verify

if TYPE_CHECKING:
    from zerobubble.runtime.emulated_run import Measurement

_SEARCH = "search"
_SCHEDULES = f"1f1b,zb-h1,zb-h2,zb-v,v-half,interleaved:v=2,{_SEARCH}"
_NEXT_SCHEDULE = re.compile(r",(?!\w+=)")  # in zb-auto:v=1,memory=3 the comma belongs to the name
_NOT_IN_NAMES = re.compile(r"[^\w.=,-]+")
_LONGEST_S = 3600.0
_COLUMNS = ("schedule", "validate", "span", "makespan", "measured", "ratio", "host us/op")
_LINE = "{:20} {:8} {:>10} {:>10} {:>10} {:>7} {:>10}"


@dataclass(frozen=True)
class Bench:
    """Run schedules on stages that sleep for as long as their ops last, and compare with paper.

    The ranks are processes of this machine, which may be many more than it has cores, and all but
    the computation is real. Times are in milliseconds. `measured` is the time from step to step:
    with --validate post it belongs beside the span, with sync beside the makespan, and `ratio` is
    over that. `host us/op` is the time for which the main thread is busy for one op.
    """

    ranks: Ranks = None
    microbatches: Microbatches = None
    costs: CostsFlag = "20,20,20,1"
    schedules: Annotated[
        str,
        arg(
            metavar="A,B,...",
            help=f"names or files; {_SEARCH} is what the search finds within --memory",
        ),
    ] = _SCHEDULES
    memory: MemoryFlag = None
    offload: Annotated[
        OffloadFlag, arg(help=f"which stages {_SEARCH} may offload: none, the best, or all")
    ] = "off"
    offload_bandwidth: BandwidthFlag = None
    recompute: ReplayFlag = "off"
    steps: Annotated[int, arg(help="how many steps are measured")] = 10
    validate: Annotated[
        Literal["post", "sync", "both"], arg(help="how the optimizer learns of the norm")
    ] = "both"
    json: Json = False
    out: Annotated[
        Union[None, str],  # noqa: UP007, RUF036 (as in _arguments)
        arg(
            metavar="FOLDER",
            help="new folder for the measured timelines: one folder for each line of the table",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"--steps {self.steps}: write a number of 1 or more")


def run(argv: Sequence[str]) -> int:
    """Measure every schedule in one set of processes; print a line as soon as each is done."""
    what, *rest = argv or ["--help"]
    if what in ("-h", "--help"):
        rest = ["--help"]
    elif what != "runtime":
        raise UsageError(f"there is no benchmark {what!r}: write zerobubble bench runtime")
    asked = parse(Bench, rest, command="bench runtime")
    ranks, _ = require_counts("bench runtime", asked.ranks, asked.microbatches)
    chosen = [_choose(spec, asked) for spec in _NEXT_SCHEDULE.split(asked.schedules)]
    for schedule, costs in chosen:
        _require_short(schedule, costs)
    ways = ("post", "sync") if asked.validate == "both" else (asked.validate,)
    if asked.out is not None:
        _make(Path(asked.out))
    if not asked.json:
        print(_LINE.format(*_COLUMNS).rstrip(), flush=True)
    work = _Work(chosen, ways, asked.steps, asked.json, asked.out)
    rows = work.here() if ranks == 1 else work.on_ranks(ranks)
    if asked.json:
        print_json({"rows": [asdict(row) | {"ratio": row.ratio} for row in rows]})
    return 0


def _choose(spec: str, asked: Bench) -> tuple[Schedule, Costs]:
    """Find or search a schedule, and verify it within the memory limit, if there is one."""
    ranks, microbatches = require_counts(spec, asked.ranks, asked.microbatches)
    limits = read_memory(asked.memory, ranks)
    if spec != _SEARCH:
        run = asked.offload_bandwidth, asked.recompute
        schedule, costs = resolve(spec, ranks, microbatches, asked.costs, *run)
        verify(schedule, costs, limits)
        return schedule, costs
    any_costs = read_costs_to_search(
        asked.costs, ranks, asked.offload_bandwidth, asked.offload, recompute=asked.recompute
    )
    # By default the memory of zb-h2, for which a schedule without bubble is known.
    limits = [2.0 * ranks] * ranks if limits is None else limits
    found = search(any_costs, ranks, microbatches, limits, effort="quick", offload=asked.offload)
    return found.schedule.renamed(_SEARCH), found.timeline.costs


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"--out {folder} exists: name a new folder") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make the folder {folder}: {error}") from None


def _keep(folder: Path, measured: MeasuredRun) -> None:
    """Write what was measured into its own folder, which ``view`` and ``export`` take."""
    folder.mkdir()
    save(measured, folder / "timeline.json")


def _require_short(schedule: Schedule, costs: Costs) -> None:
    seconds = simulate(schedule, costs).makespan / 1e3
    if not seconds <= _LONGEST_S:
        raise UsageError(
            f"a step of {schedule.name} lasts {seconds:.3g} s at these costs, and it is run for "
            "real: give times in milliseconds that add up to an hour at most"
        )


@dataclass(frozen=True)
class _Work:
    """What every rank does: it measures each schedule in each way."""

    chosen: Sequence[tuple[Schedule, Costs]]
    ways: Sequence[str]
    num_steps: int
    is_silent: bool
    out: str | None

    def here(self) -> "list[Measurement]":
        """Measure on this rank; rank 0 gets the rows and prints them."""
        from zerobubble.runtime.emulated_run import measure

        rows = []
        for (schedule, costs), validate in product(self.chosen, self.ways):
            keep = self.out and partial(_keep, self._folder(schedule.name, validate))
            row = measure(schedule, costs, validate, self.num_steps, keep or None)
            if row is not None:
                rows.append(row)
                if not self.is_silent:
                    print(_text(row), flush=True)
        return rows

    def _folder(self, name: str, validate: str) -> Path:
        assert self.out is not None
        return Path(self.out) / f"{_NOT_IN_NAMES.sub('_', name)}-{validate}"

    def on_ranks(self, num_ranks: int) -> "list[Measurement]":
        """Measure in one process for each rank; return the rows of rank 0."""
        from zerobubble.train.launch import launch

        rows: list[Measurement] = launch([self._in_a_process], num_ranks, threads=1)[0]
        return rows

    def _in_a_process(self) -> "list[Measurement]":
        from zerobubble.train.launch import end_with_launcher

        end_with_launcher()
        return self.here()


def _text(row: "Measurement") -> str:
    times = (f"{ms:.1f}" for ms in (row.span, row.makespan, row.measured))
    ratio = "-" if row.ratio is None else f"{row.ratio:.4f}"
    host = f"{row.host_us_per_op:.0f}"
    return _LINE.format(row.schedule, row.validate, *times, ratio, host)
