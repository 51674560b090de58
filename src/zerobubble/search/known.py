"""Which registered schedules have a placement?"""

from collections.abc import Callable
from functools import cache, lru_cache, partial

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError
from zerobubble.ir import Kind, Placement, Schedule
from zerobubble.schedules import REGISTRY, Recipe
from zerobubble.search.auto import AUTO

# Builds a schedule for so many ranks, so many microbatches and the costs of the stages.
Known = Callable[[int, int, Costs], Schedule]

# Built schedules of up to so many forwards are kept.
_LARGEST_KEPT = 20_000


def known_schedules(placement: Placement, may_move: bool = False) -> dict[str, Known]:
    """List, by name, what builds the registered schedules that have a placement.

    They can be built for copies of it with other numbers of ranks too. Those that offload or
    recompute are left out unless they ``may_move`` activations.

    >>> from zerobubble.ir import v_shape
    >>> "zb-v" in known_schedules(v_shape(4)), "1f1b" in known_schedules(v_shape(4))
    (True, False)
    """
    found: dict[str, Known] = {}
    per_rank = len(placement.stages_of(0))
    for recipe in (recipe for name, recipe in REGISTRY.items() if name != AUTO):
        for parameters in ({}, {"v": per_rank}, {"waves": max(1, per_rank // 2)}):
            if not parameters.keys() <= recipe.parameters.keys():
                continue
            is_placed = recipe.place(placement.num_ranks, **parameters) == placement
            if is_placed and (may_move or not _moves(recipe.name)):
                found[recipe.name] = partial(_build, recipe, parameters)
                break
    return found


@cache
def _moves(name: str) -> bool:
    """Say whether a registered schedule offloads or recomputes anything."""
    return any(_has_moves(REGISTRY[name], count) for count in (2, 3))


def _has_moves(recipe: Recipe, count: int) -> bool:
    try:
        return recipe.build(count, 2 * count).num_kinds > Kind.O
    except ScheduleError:  # it is not defined for these numbers
        return False


def _build(
    recipe: Recipe, parameters: dict[str, int], num_ranks: int, num_microbatches: int, costs: Costs
) -> Schedule:
    num_stages = len(recipe.place(num_ranks, **parameters).stage_to_rank)
    costs.require_stages(num_stages, recipe.name)
    if recipe.takes_costs or num_stages * num_microbatches > _LARGEST_KEPT:
        return recipe.build(num_ranks, num_microbatches, costs, **parameters)
    return _build_once(recipe.name, num_ranks, num_microbatches, **parameters)


@lru_cache(maxsize=64)
def _build_once(name: str, num_ranks: int, num_microbatches: int, **parameters: int) -> Schedule:
    """Build a schedule that knows no costs: a search asks for it again and again."""
    return REGISTRY[name].build(num_ranks, num_microbatches, None, **parameters)
