"""Which schedule and which costs do the arguments of a command mean?"""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zerobubble.cli._arguments import UNIT_COSTS
from zerobubble.cli._measured import refuse_run
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.formats.json import load
from zerobubble.formats.python import blame, load_recipe
from zerobubble.formats.reading import parse_json, read_text, show_value
from zerobubble.ir import Placement, Schedule
from zerobubble.schedules import REGISTRY, Recipe, recipe
from zerobubble.schedules.registry import parse_spec
from zerobubble.search.relief import require_light

_IN_PYTHON_FILE = re.compile(r"(?P<path>.*?\.py):(?P<function>.+)", re.DOTALL)


def resolve(
    spec: str,
    ranks: int | None,
    microbatches: int | None,
    costs: str,
    bandwidth: str | None = None,
    recompute: str = "off",
) -> tuple[Schedule, Costs]:
    """Find or build the schedule that a name or file means, and the costs of its stages.

    Raises:
        UsageError: the name, file, costs or number of ranks or microbatches is wrong or missing.
        ScheduleError: the schedule is not defined for these numbers.
    """
    read = partial(read_costs, costs, bandwidth=bandwidth, recompute=recompute)
    if match := _IN_PYTHON_FILE.fullmatch(spec):
        name, parameters = parse_spec(match["function"])
        with blame(match["path"]):
            found = load_recipe(match["path"], name)
            return _build(found, parameters, ranks, microbatches, read)
    refuse_run(spec)
    if spec.partition(":")[0] not in REGISTRY and _looks_like_a_file(spec):
        if spec.endswith(".py"):
            raise UsageError(f"{spec} is a Python file: add the function, {spec}:my_schedule")
        schedule = load(spec)
        must_agree(spec, "ranks", "-p", schedule.num_ranks, ranks)
        must_agree(spec, "microbatches", "-m", schedule.num_microbatches, microbatches)
        return schedule, read(schedule.placement)
    name, parameters = parse_spec(spec)
    return _build(recipe(name), parameters, ranks, microbatches, read)


class Asked(Protocol):
    """The arguments of a command that times a schedule."""

    @property
    def ranks(self) -> int | None:
        """What ``-p`` says."""

    @property
    def microbatches(self) -> int | None:
        """What ``-m`` says."""

    @property
    def costs(self) -> str:
        """What ``--costs`` says."""

    @property
    def offload_bandwidth(self) -> str | None:
        """What ``--offload-bandwidth`` says."""

    @property
    def recompute(self) -> str:
        """What ``--recompute`` says."""


def resolve_asked(spec: str, asked: Asked) -> tuple[Schedule, Costs]:
    """Find or build a schedule and its costs by the arguments of a command; as ``resolve``."""
    sizes = asked.ranks, asked.microbatches
    costs = asked.costs or UNIT_COSTS
    return resolve(spec, *sizes, costs, asked.offload_bandwidth, asked.recompute)


def read_costs(
    text: str, placement: Placement, bandwidth: str | None = None, recompute: str = "off"
) -> Costs:
    """Read ``F,B,W,comm[,kept]`` or the JSON file of this name, and how a run changes them.

    Args:
        text: what ``--costs`` says.
        placement: whose stages the costs are for.
        bandwidth: what ``--offload-bandwidth`` says.
        recompute: ``light`` for the costs of a run that computes light ops again.

    Raises:
        UsageError: neither fits, or a value is wrong.
    """
    if _looks_like_a_file(text):
        return _of_run(_costs_in(text, _values_in(text), placement), bandwidth, recompute)
    numbers = _numbers(text)
    if numbers is None or len(numbers) not in (4, 5):
        raise UsageError(
            f"--costs {text!r}: write F,B,W,comm or F,B,W,comm,kept as numbers, or a JSON file"
        )
    return _of_run(Costs.of_ranks(placement, *numbers), bandwidth, recompute)


def _of_run(costs: Costs, bandwidth: str | None, recompute: str) -> Costs:
    if bandwidth is not None:
        costs = _with_bandwidth(costs, bandwidth)
    return require_light(costs).light() if recompute == "light" else costs


def _with_bandwidth(costs: Costs, bandwidth: str) -> Costs:
    numbers = _numbers(bandwidth)
    if numbers is None or len(numbers) != 1 or not 0 < numbers[0] < math.inf:
        raise UsageError(f"--offload-bandwidth {bandwidth!r}: write a number above 0")
    try:
        return costs.with_bandwidth(numbers[0])
    except UsageError as error:
        raise UsageError(f"--offload-bandwidth {bandwidth!r}: {error}") from None


def read_costs_to_search(
    text: str,
    ranks: int,
    bandwidth: str | None,
    offload: str,
    placement: str = "",
    recompute: str = "off",
) -> Costs | Callable[[Placement], Costs]:
    """Read the costs of every stage, or what gives them for a placement.

    Raises:
        UsageError: as ``read_costs``, or stages may be offloaded and nobody said how fast.
    """
    if placement:
        costs: Costs | Callable[[Placement], Costs] = partial(
            read_costs, text, bandwidth=bandwidth, recompute=recompute
        )
    else:
        costs = read_costs_for_any_placement(text, ranks, bandwidth, recompute)
    if offload == "off":
        return costs
    if isinstance(costs, Costs):
        return _require_copy_times(costs)
    return lambda placement: _require_copy_times(costs(placement))


def _require_copy_times(costs: Costs) -> Costs:
    """Refuse to search with copies to the host that nobody said the time of."""
    if not (costs.offload.any() or costs.load.any()):
        raise UsageError(
            "--offload needs the speed of the copies: give --offload-bandwidth, or costs with "
            "offload and load"
        )
    return costs


def read_costs_for_any_placement(
    text: str, ranks: int, bandwidth: str | None = None, recompute: str = "off"
) -> Costs | Callable[[Placement], Costs]:
    """Read costs that a file gives for so many stages, or that fit themselves to a placement.

    Raises:
        UsageError: as ``read_costs``, or a file gives no value for each stage.
    """
    if not _looks_like_a_file(text):
        return partial(read_costs, text, bandwidth=bandwidth, recompute=recompute)
    values = _values_in(text)
    lengths = [len(each) for name, each in values.items() if _is_per_stage(name, each)]
    if not lengths:
        raise UsageError(f"{text}: give a list with one value for each stage, to say how many")
    holders = (stage % ranks for stage in range(max(1, lengths[0])))
    costs = _costs_in(text, values, Placement(tuple(holders)))
    return _of_run(costs, bandwidth, recompute)


def read_memory(text: str | None, num_ranks: int) -> list[float] | None:
    """Read a memory limit for every rank, or one for each.

    Raises:
        UsageError: it is not a number, or their count is wrong.
    """
    if text is None:
        return None
    numbers = _numbers(text)
    if numbers is None or not all(number > 0 for number in numbers):
        raise UsageError(f"--memory {text!r}: write a number above 0, or one for each rank")
    if len(numbers) not in (1, num_ranks):
        raise UsageError(
            f"--memory gives {len(numbers)} limits for {num_ranks} ranks: write one, or one for "
            "each rank"
        )
    return numbers if len(numbers) > 1 else numbers * num_ranks


def read_memory_range(text: str | None) -> tuple[float, float] | None:
    """Read the smallest and the largest of some memory limits, or only the largest.

    Raises:
        UsageError: these are not one or two numbers, or they are not a range.
    """
    if text is None:
        return None
    numbers = _numbers(text)
    if numbers is None or len(numbers) not in (1, 2) or not all(map(math.isfinite, numbers)):
        raise UsageError(f"--memory {text!r}: write the largest limit, or smallest,largest")
    return numbers[0] if len(numbers) > 1 else 0.0, numbers[-1]


def require_counts(what: str, ranks: int | None, microbatches: int | None) -> tuple[int, int]:
    """Refuse a command line without ``-p`` or ``-m`` where both are needed."""
    if ranks is None or microbatches is None:
        missing = "-p" if ranks is None else "-m"
        raise UsageError(f"{what} needs ranks and microbatches: {missing} is missing")
    return ranks, microbatches


def must_agree(path: str, what: str, flag: str, in_file: int, given: int | None) -> None:
    """Refuse a number on the command line that is not the one in a file."""
    if given not in (None, in_file):
        raise UsageError(f"{path} is for {in_file} {what}, not {given}: give {flag} {in_file}")


def _build(
    found: Recipe,
    parameters: dict[str, int],
    ranks: int | None,
    microbatches: int | None,
    read: Callable[[Placement], Costs],
) -> tuple[Schedule, Costs]:
    ranks, microbatches = require_counts(found.name, ranks, microbatches)
    placement = found.place(ranks, **parameters)
    costs = read(placement)
    return found.build(ranks, microbatches, costs, **parameters), costs


def _values_in(path: str) -> dict[str, Any]:
    values = parse_json(read_text(path), path)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: costs are an object, not {show_value(values)}")
    return values


def _is_per_stage(name: str, value: object) -> bool:
    return isinstance(value, list) and name != "transfer"  # which may be per boundary


def _costs_in(path: str, values: dict[str, Any], placement: Placement) -> Costs:
    try:
        return Costs.from_dict(values, placement)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _looks_like_a_file(text: str) -> bool:
    if text.endswith((".json", ".py")):
        return True
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _numbers(text: str) -> list[float] | None:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None
