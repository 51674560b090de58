"""Which parameters and buffers does this rank hold, by their names in the whole model?"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.partition import StageModule
from zerobubble.runtime.transport import Transport


def model_state(modules: Iterable[StageModule]) -> dict[str, Any]:
    """Give the state of some stages under the names of the whole model."""
    return {
        module.name_in_model(name): value
        for module in modules
        for name, value in module.layers.state_dict().items()
    }


def part_of_state(
    modules: Iterable[StageModule], state: Mapping[str, Any], elsewhere: Collection[str]
) -> dict[str, Any]:
    """Select what concerns some stages out of a state of them, or of the whole model.

    Args:
        modules: the stages of this rank.
        state: by the names of the whole model.
        elsewhere: names of what other ranks hold.

    Raises:
        UsageError: a name is missing, unexpected, or has another shape.
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UsageError(f"a state is a dict of names and tensors, not {type(state).__name__}")
    modules = list(modules)
    own = model_state(modules)
    found = {name: v for name, v in state.items() if name in own or name not in elsewhere}
    problems = {
        "are missing": own.keys() - found.keys(),
        "are unexpected": found.keys() - own.keys(),
        "have other shapes": {
            f"{name} {_shape(found[name])} for {list(value.shape)}"
            for name, value in own.items()
            if isinstance(value, Tensor)
            and name in found
            and _shape(found[name]) != list(value.shape)
        },
        "are no tensors": {
            name
            for name, value in own.items()
            if isinstance(value, Tensor) and not isinstance(found.get(name, value), Tensor)
        },
    }
    described = [f"{sorted(names)} {what}" for what, names in problems.items() if names]
    if described:
        held = {number for module in modules for number in module.layers}
        raise UsageError(
            f"this state does not fit layers {sorted(map(int, held))}: {'; '.join(described)}"
        )
    return found


def load_together(
    modules: Sequence[StageModule], state: Mapping[str, Any], transport: Transport
) -> None:
    """Load this rank's part of a state if every rank can load its own; all call this together.

    Raises:
        UsageError: on one of them a name is missing, unexpected, or has another shape.
    """
    names = set().union(*transport.share_object(set(model_state(modules))))
    part, problem = {}, ""
    try:
        part = part_of_state(modules, state, names)
    except UsageError as error:
        problem = str(error)
    if wrong := [each for each in transport.share_object(problem) if each]:
        raise UsageError(problem or wrong[0])
    for module in modules:
        own = module.layers.state_dict().keys()
        module.layers.load_state_dict({name: part[module.name_in_model(name)] for name in own})


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if hasattr(value, "shape") else None
