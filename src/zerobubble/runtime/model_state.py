"""Which parameters and buffers does this rank hold, by their names in the whole model?"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.partition import StageModule


def model_state(modules: Iterable[StageModule]) -> dict[str, Any]:
    """Give the state of some stages under the names of an ``nn.Sequential`` of all layers."""
    return {name: v for module in modules for name, v in module.layers.state_dict().items()}


def part_of_state(
    modules: Iterable[StageModule], state: Mapping[str, Any], num_layers: int
) -> dict[str, Any]:
    """Select what concerns some stages out of a state of them, or of the whole model.

    Raises:
        UsageError: a name is missing, unexpected, or has another shape.
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UsageError(f"a state is a dict of names and tensors, not {type(state).__name__}")
    modules = list(modules)
    own = model_state(modules)
    held = {number for module in modules for number in module.layers}
    elsewhere = {str(number) for number in range(num_layers)} - held
    found = {name: v for name, v in state.items() if name.partition(".")[0] not in elsewhere}
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
        raise UsageError(
            f"this state does not fit layers {sorted(map(int, held))}: {'; '.join(described)}"
        )
    return found


def load_part(modules: Iterable[StageModule], part: Mapping[str, Any]) -> None:
    """Load what ``part_of_state`` has selected."""
    for module in modules:
        names = module.layers.state_dict().keys()
        module.layers.load_state_dict({name: part[name] for name in names})


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if hasattr(value, "shape") else None
