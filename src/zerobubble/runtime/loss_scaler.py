"""By what is the loss multiplied, so that gradients in float16 do not vanish?"""

import math
from typing import Any

import torch

from zerobubble.errors import UsageError

# Beyond these neither the scale nor its inverse are float32.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126


class LossScaler:
    """A scale that shrinks when a gradient overflows and grows after a while without (1710.03740).

    Args:
        initial_scale: of the first step.
        growth_factor: by which the scale grows.
        backoff_factor: by which it is multiplied after an inf or a nan.
        growth_interval: after how many good steps in a row it grows.

    Raises:
        UsageError: a number is out of range.

    >>> scaler = LossScaler(initial_scale=8.0, growth_interval=2)
    >>> for is_finite in (True, True, False):
    ...     scaler.update(is_finite)
    ...     print(scaler.scale)
    8.0
    16.0
    8.0
    """

    def __init__(
        self,
        initial_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        is_finite = math.isfinite(initial_scale) and math.isfinite(growth_factor)
        if not (is_finite and initial_scale > 0 and growth_factor >= 1 and 0 < backoff_factor < 1):
            raise UsageError(
                "a loss scaler needs a finite initial_scale > 0, growth_factor >= 1 and "
                "backoff_factor between 0 and 1, not "
                f"{initial_scale}, {growth_factor} and {backoff_factor}"
            )
        if growth_interval < 1:
            raise UsageError(f"growth_interval must be at least 1, not {growth_interval}")
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.scale = initial_scale
        self.num_good_steps = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Give all that must be the same on every rank."""
        fixed = ("growth_factor", "backoff_factor", "growth_interval")
        return {name: getattr(self, name) for name in fixed} | self.state_dict()

    def update(self, is_finite: bool) -> None:
        """Note how a step of the optimizer went."""
        self.num_good_steps = self.num_good_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(self.scale * self.backoff_factor, _SMALLEST)
        elif self.num_good_steps == self.growth_interval:
            self.scale = min(self.scale * self.growth_factor, _LARGEST)
            self.num_good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Give what changes from step to step."""
        return {"scale": self.scale, "num_good_steps": self.num_good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.scale, self.num_good_steps = state["scale"], state["num_good_steps"]


class _TorchLossScaler(LossScaler):
    """Takes its settings from a ``torch.amp.GradScaler`` and keeps its state in that one."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.inner = scaler
        state = scaler.state_dict()
        factors = (state["growth_factor"], state["backoff_factor"], state["growth_interval"])
        super().__init__(state["scale"], *factors)
        self.num_good_steps = state["_growth_tracker"]

    @property
    def scale(self) -> float:
        """The scale that the other one has now."""
        return float(self.inner.get_scale())

    @scale.setter
    def scale(self, value: float) -> None:
        self._store("scale", value)

    @property
    def num_good_steps(self) -> int:
        """How many good steps the other one has counted."""
        return int(self.inner.state_dict()["_growth_tracker"])

    @num_good_steps.setter
    def num_good_steps(self, value: int) -> None:
        self._store("_growth_tracker", value)

    def _store(self, name: str, value: float) -> None:
        self.inner.load_state_dict({**self.inner.state_dict(), name: value})


def find_loss_scaler(
    scaler: "LossScaler | torch.amp.GradScaler | None",
) -> LossScaler | None:
    """Take a scaler of ours as it is, and one of torch by its settings; None if it is disabled.

    Raises:
        UsageError: it is neither.
    """
    if scaler is None or isinstance(scaler, LossScaler):
        return scaler
    if isinstance(scaler, torch.amp.GradScaler):
        return _TorchLossScaler(scaler) if scaler.is_enabled() else None
    raise UsageError(
        f"loss_scaler must be a LossScaler or a torch.amp.GradScaler, not {type(scaler).__name__}"
    )
