"""How does one optimizer step look over all ranks? Norm, clipping, inf/nan check, then the step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zerobubble.errors import UsageError
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.tied import TiedParameters
from zerobubble.runtime.transport import Transport


class PipelineOptimizer:
    """A ``torch.optim`` optimizer whose step agrees over all ranks.

    Every rank steps its own parameters with gradients that are clipped by the norm over the whole
    model; if any gradient anywhere is inf or nan, all ranks skip the step. Gradients are dropped
    afterwards, so that several ``Pipeline.step`` before one ``step`` accumulate.

    Attributes:
        inner: this rank's optimizer, or None where it holds nothing to train.
        grad_norm: gradient norm over the whole model at the last step, before clipping.
        num_steps: calls of ``step``.
        num_clipped: how many of them clipped.
        num_skipped: how many of them were skipped for an inf or a nan.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer | None,
        transport: Transport,
        tied: TiedParameters,
        max_grad_norm: float | None = None,
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise UsageError(f"max_grad_norm must be positive, not {max_grad_norm}")
        self.inner = inner
        self.max_grad_norm = max_grad_norm
        self.grad_norm = 0.0
        self.num_steps = self.num_clipped = self.num_skipped = 0
        self._transport = transport
        self._tied = tied

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of this rank; empty where it holds nothing to train."""
        return [] if self.inner is None else self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Clip, check and step on all ranks, then drop the gradients."""
        self.num_steps += 1
        with naming_the_cause(self._transport.rank, f"optimizer step {self.num_steps}"):
            self._tied.sum_gradients()
            gradients = self._gradients()
            square = self._square_over_ranks(list(gradients.values()))
        # The norm is rounded to float32 after the sum in float64, so that the order in which
        # ranks add their parts does not show (paper section 4 needs the same chain).
        norm = square.sqrt().float()
        self.grad_norm = float(norm)
        if not norm.isfinite():
            self.num_skipped += 1
        else:
            self._clip(list(gradients), norm)
            if self.inner is not None:
                self.inner.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop all gradients of this rank."""
        if self.inner is not None:
            self.inner.zero_grad(set_to_none=True)

    def _gradients(self) -> dict[Tensor, nn.Parameter]:
        """Map this rank's gradients to their parameters, in the order of the groups."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        return {p.grad: p for p in parameters if p.grad is not None}

    def _square_over_ranks(self, parameters: list[nn.Parameter]) -> Tensor:
        """Sum the squared norms down the ranks, and share the result; float64, on the CPU."""
        # All ranks compute their squares at once; only the sum runs down the ranks.
        squares = [
            _square(parameter.grad)
            for parameter in parameters
            if parameter not in self._tied.repeated and parameter.grad is not None
        ]
        square = torch.zeros(1, dtype=torch.float64)
        transport = self._transport
        if transport.rank > 0:
            transport.receive_control(square, transport.rank - 1)
        for value in squares:
            square += value
        if transport.rank < transport.num_ranks - 1:
            transport.send_control(square, transport.rank + 1)
            square = torch.zeros(1, dtype=torch.float64)
        return transport.share_control(square, transport.num_ranks - 1)

    def _clip(self, gradients: list[Tensor], norm: Tensor) -> None:
        if self.max_grad_norm is None:
            return
        factor = float(self.max_grad_norm / (norm + 1e-6))
        if factor < 1:
            self.num_clipped += 1
            if gradients:
                torch._foreach_mul_(gradients, factor)


def _square(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float64)
    return norm.square().cpu()


def build_inner(
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    options: Mapping[str, Any],
) -> torch.optim.Optimizer | None:
    """Take an optimizer as it is, or build one for this rank's trainable parameters.

    Raises:
        UsageError: options are given beside a finished optimizer.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        if options:
            raise UsageError(f"options {sorted(options)} need an optimizer class, not an instance")
        return optimizer
    trainable = [p for p in dict.fromkeys(parameters.values()) if p.requires_grad]
    return optimizer(trainable, **options) if trainable else None
