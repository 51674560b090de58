"""Which parameters and buffers does this rank hold, by their names in the whole model?"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.partition import StageModule


def model_state(modules: Iterable[StageModule]) -> dict[str, Any]:
    """Give the state of some stages under the names of an ``nn.Sequential`` of all layers."""
    return {name: v for module in modules for name, v in module.layers.state_dict().items()}


def load_model_state(
    modules: Iterable[StageModule], state: Mapping[str, Any], num_layers: int
) -> None:
    """Load what concerns some stages out of a state of them, or of the whole model.

    Raises:
        UsageError: a name is missing, unexpected, or has another shape; nothing is loaded then.
    """
    modules = list(modules)
    own = model_state(modules)
    held = {number for module in modules for number in module.layers}
    elsewhere = {str(number) for number in range(num_layers)} - held
    found = {name: v for name, v in state.items() if name.partition(".")[0] not in elsewhere}
    problems = {
        "are missing": own.keys() - found.keys(),
        "are unexpected": found.keys() - own.keys(),
        "have other shapes": {
            f"{name} {list(found[name].shape)} for {list(value.shape)}"
            for name, value in own.items()
            if isinstance(value, Tensor) and name in found and found[name].shape != value.shape
        },
    }
    described = [f"{sorted(names)} {what}" for what, names in problems.items() if names]
    if described:
        raise UsageError(
            f"this state does not fit layers {sorted(map(int, held))}: {'; '.join(described)}"
        )
    for module in modules:
        names = module.layers.state_dict().keys()
        module.layers.load_state_dict({name: found[name] for name in names})
