"""Which ranks can hold which stages of a model with so many layers?"""

from collections.abc import Sequence
from typing import Any

from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value
from zerobubble.ir import Placement, placement_named, wave
from zerobubble.search.placements import PLACEMENTS, placement_of

# A name, a placement or the ranks of all stages, or several of these.
Placements = Placement | str | Sequence[int] | Sequence[Placement | str | Sequence[int]]


def placements_to_try(
    num_layers: int, num_ranks: int, asked: Placements | None = None
) -> list[Placement]:
    """List the placements asked for, or those of ``PLACEMENTS`` with at most a layer a stage.

    Where a V has too many stages, it is cut short: ranks near its end then hold one stage.

    Args:
        num_layers: how many layers the model has.
        num_ranks: p.
        asked: one or a list of names, placements, or lists with the rank of each stage.

    Raises:
        UsageError: a placement is unknown, for another number of ranks, or has too many stages.

    >>> [str(place) for place in placements_to_try(3, 2)]
    ['linear', '0,1,1']
    """
    if asked is not None:
        return [_checked(each, num_layers, num_ranks) for each in _listed(asked)]
    places = [placement_named(name, num_ranks) for name in PLACEMENTS]
    places = [place for place in places if place.num_stages <= num_layers]
    if num_ranks < num_layers < 2 * num_ranks:
        places.append(Placement(wave(num_ranks, 2).stage_to_rank[:num_layers]))
    return list(dict.fromkeys(places))


def _listed(asked: Placements) -> Sequence[Any]:
    if isinstance(asked, str | Placement):
        return [asked]
    if not isinstance(asked, Sequence):
        raise UsageError(
            f"placements must be names, Placements or the rank of each stage, not "
            f"{show_value(asked)}"
        )
    if all(isinstance(each, int) for each in asked):
        return [asked]
    return asked


def _checked(asked: Placement | str | Sequence[int], num_layers: int, num_ranks: int) -> Placement:
    place = placement_of(asked, num_ranks)
    if place.num_ranks != num_ranks:
        raise UsageError(f"placement {place} has {place.num_ranks} ranks, not {num_ranks}")
    if place.num_stages > num_layers:
        raise UsageError(
            f"placement {place} has {place.num_stages} stages on {num_ranks} ranks, but there are "
            f"only {num_layers} layers: choose fewer stages a rank"
        )
    return place
