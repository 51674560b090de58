"""How is a schedule registered, named, found and built?"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Placement, Schedule

OrderFunction = Callable[..., Any]
PlacementFunction = Callable[..., Placement]

REGISTRY: dict[str, "Recipe"] = {}

# Ranks times microbatches times stages a rank: beyond it memory would run out.
LARGEST_SIZE = 2**26


@dataclass(frozen=True)
class Recipe:
    """How to build one named schedule for any number of ranks and microbatches.

    Attributes:
        name: as on the command line.
        order: yields the ops of one rank, or returns the whole schedule.
        placement: gives the placement for a number of ranks and the parameters.
        paper: where the schedule was published.
        parameters: whole numbers that the schedule takes, such as ``v``, with their defaults;
            None where the default depends on the number of ranks.
        takes_costs: whether the order depends on the costs.
        is_whole: whether ``order`` returns the whole schedule.
    """

    name: str
    order: OrderFunction
    placement: PlacementFunction
    paper: str
    parameters: dict[str, int | None]
    takes_costs: bool
    is_whole: bool = False

    @property
    def summary(self) -> str:
        """First line of the schedule's docstring."""
        return (inspect.getdoc(self.order) or "").partition("\n")[0]

    @property
    def _sizing(self) -> set[str]:
        return {"ranks", "microbatches", *inspect.signature(self.placement).parameters}

    def place(self, num_ranks: int, **parameters: int) -> Placement:
        """Build the placement; parameters that are not given take their defaults.

        Raises:
            UsageError: a number is not positive, or a parameter is unknown.
        """
        if unknown := sorted(set(parameters) - set(self.parameters)):
            takes = ", ".join(self.parameters) or "none"
            raise UsageError(f"{self.name} has no parameter {unknown[0]!r}; it takes {takes}")
        given = self.parameters | parameters
        _check_counts(self.name, {"ranks": num_ranks, **given}, self._sizing)
        return self.placement(num_ranks, **_accepted(self.placement, given))

    def build(
        self, num_ranks: int, num_microbatches: int, costs: Costs | None = None, **parameters: int
    ) -> Schedule:
        """Build the schedule.

        Raises:
            UsageError: a number is not positive, or a parameter is unknown.
            ScheduleError: the schedule is not defined for these numbers.
        """
        counts = {"ranks": num_ranks, "microbatches": num_microbatches}
        _check_counts(self.name, counts | self.parameters | parameters, self._sizing)
        placement = self.place(num_ranks, **parameters)
        given: dict[str, Any] = self.parameters | parameters
        if costs is not None:
            costs.require_stages(placement.num_stages, self.name)
        if self.takes_costs:
            given |= {"costs": costs or Costs.of_ranks(placement)}
        given |= {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
        name = ":".join([self.name, ",".join(f"{k}={v}" for k, v in parameters.items())])
        if self.is_whole:
            whole: Schedule = self.order(**given)
            return whole.renamed(name.rstrip(":"))
        ops = [self.order(rank, **given) for rank in range(num_ranks)]
        return Schedule.from_ops(name.rstrip(":"), placement, num_microbatches, ops)


def schedule(
    name: str, *, placement: PlacementFunction, paper: str
) -> Callable[[OrderFunction], OrderFunction]:
    """Register a function that yields the ops of one rank in the order it runs them.

    The function takes ``rank`` and the keywords ``num_ranks`` and ``num_microbatches``; further
    keywords with whole numbers or None as defaults are the schedule's parameters, and ``costs``
    receives the costs. A function without ``rank`` returns the whole schedule instead. The
    placement function takes the number of ranks and any of the parameters.
    """

    def register(order: OrderFunction) -> OrderFunction:
        keywords = inspect.signature(order).parameters
        parameters = {
            key: keyword.default
            for key, keyword in keywords.items()
            if keyword.default is not inspect.Parameter.empty and key != "costs"
        }
        takes_costs = "costs" in keywords
        is_whole = "rank" not in keywords
        REGISTRY[name] = Recipe(name, order, placement, paper, parameters, takes_costs, is_whole)
        return order

    return register


def parse_spec(spec: str) -> tuple[str, dict[str, int]]:
    """Split a name such as ``interleaved:v=4`` into the name and its parameters.

    Raises:
        UsageError: a parameter is not of the form ``key=whole number``.

    >>> parse_spec("interleaved:v=4")
    ('interleaved', {'v': 4})
    """
    name, _, rest = spec.partition(":")
    parameters: dict[str, int] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if not value.isdecimal():
            raise UsageError(f"schedule {spec!r}: write parameters as {name}:v=2, not {part!r}")
        parameters[key] = int(value)
    return name, parameters


def recipe(name: str) -> Recipe:
    """Find a registered schedule.

    Raises:
        UsageError: there is none of this name; the message names the known ones.
    """
    if name not in REGISTRY:
        close = get_close_matches(name, REGISTRY, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"unknown schedule {name!r}: {hint}known are {', '.join(REGISTRY)}")
    return REGISTRY[name]


def build(spec: str, num_ranks: int, num_microbatches: int, costs: Costs | None = None) -> Schedule:
    """Build a registered schedule by name, with parameters as in ``interleaved:v=4``.

    Raises:
        UsageError: the name or a parameter is unknown, or a number is not positive.
        ScheduleError: the schedule is not defined for these numbers.

    >>> build("zb-h1", num_ranks=4, num_microbatches=8).num_ops
    96
    """
    name, parameters = parse_spec(spec)
    return recipe(name).build(num_ranks, num_microbatches, costs, **parameters)


def _accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    keywords = inspect.signature(function).parameters
    return {key: value for key, value in given.items() if key in keywords}


def _check_counts(name: str, counts: Mapping[str, int | None], sizing: Collection[str]) -> None:
    """Refuse counts below 1, and too large a product of those that decide the number of ops."""
    for what, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{name}: {what} must be at least 1, not {count}")
    size = math.prod(count for what, count in counts.items() if count and what in sizing)
    if size > LARGEST_SIZE:
        raise UsageError(f"{name}: {size} ops a kind are too many: at most {LARGEST_SIZE}")
