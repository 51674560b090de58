"""List the schedules that are known by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from zerobubble.cli._arguments import Json
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json
from zerobubble.schedules import REGISTRY, Recipe
from zerobubble.view.numbers import table


@dataclass(frozen=True)
class List:
    """List the schedules that are known by name."""

    json: Json = False


def run(argv: Sequence[str]) -> int:
    """Print name, placement, parameters, paper and summary of every registered schedule."""
    rows = [_row(recipe) for recipe in REGISTRY.values()]
    if parse(List, argv, command="list").json:
        print_json({"schedules": rows})
        return 0
    cells = [[r.name, r.placement.__name__, _parameters(r), r.paper] for r in REGISTRY.values()]
    print(table(["schedule", "placement", "parameters", "paper"], cells, left=4))
    print()
    print(table(["schedule", "what it does"], [[r.name, r.summary] for r in REGISTRY.values()], 2))
    return 0


def _row(recipe: Recipe) -> dict[str, object]:
    return {
        "schedule": recipe.name,
        "placement": recipe.placement.__name__,
        "parameters": recipe.parameters,
        "paper": recipe.paper,
        "summary": recipe.summary,
    }


def _parameters(recipe: Recipe) -> str:
    return (
        ",".join(
            key if value is None else f"{key}={value}" for key, value in recipe.parameters.items()
        )
        or "-"
    )
