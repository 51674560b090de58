"""How does one optimizer step look over all ranks? Norm, clipping, inf/nan check, then the step.

With ``validate="post"`` a rank need not wait for the norm over all ranks: it steps on the guess
that nothing is clipped or skipped, and learns at the VALIDATE of its next program whether that was
right (arXiv 2401.10241, section 4).
"""

import atexit
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from zerobubble.errors import UsageError
from zerobubble.runtime.agreement import Agreement, Verdict
from zerobubble.runtime.attempt import (
    Attempt,
    attempt,
    multiply,
    must_be_steppable_in_buckets,
    must_see_what_stands,
    step_in_buckets,
)
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.loss_scaler import LossScaler
from zerobubble.runtime.master_weights import Weights
from zerobubble.runtime.tied import TiedParameters

_COUNTERS = ("num_steps", "num_validated", "num_clipped", "num_skipped", "num_replayed")


@dataclass
class _Pending:
    """A step whose outcome is not yet known on every rank."""

    attempt: Attempt | None
    verdict: Verdict | None


class PipelineOptimizer:
    """A ``torch.optim`` optimizer whose step agrees over all ranks.

    Every rank steps its own parameters with gradients that are clipped by the norm over the whole
    model; if any gradient anywhere is inf or nan, all ranks skip the step. Gradients are dropped
    afterwards, so that several ``Pipeline.step`` before one ``step`` accumulate.

    With ``validate="post"``, parameters may be those of a guess until the next ``Pipeline.step``
    or ``synchronize``; the outcome has the same bits as without. Call ``synchronize`` at the end of
    training and before parameters are read or changed; ``Pipeline.eval``, ``state_dict`` and
    ``load_state_dict`` call it themselves. Where the inner optimizer has hooks on ``step``, which
    must see only what stands, this rank waits in ``step``.

    Attributes:
        inner: this rank's optimizer, or None where it holds nothing to train.
        grad_norm: gradient norm over the whole model, before clipping, at the last step whose
            outcome is known.
        num_steps: calls of ``step``.
        num_validated: how many of them some rank took on a guess that was right.
        num_clipped: how many of them clipped.
        num_skipped: how many of them were skipped for an inf or a nan.
        num_replayed: after how many of them forwards were run again, because of a wrong guess.
    """

    def __init__(
        self,
        weights: Weights,
        agreement: Agreement,
        tied: TiedParameters,
        *,
        validate: str = "sync",
        loss_scaler: LossScaler | None = None,
        offload_state: bool = False,
    ) -> None:
        if validate not in ("post", "sync"):
            raise UsageError(f"validate must be 'post' or 'sync', not {validate!r}")
        if offload_state and weights.inner is not None:
            must_be_steppable_in_buckets(weights.inner)
            weights.offload_state()
        self.inner = weights.inner
        self.agreement = agreement
        self.loss_scaler = loss_scaler
        self.grad_norm = 0.0
        self.num_steps = self.num_validated = self.num_replayed = 0
        self.num_clipped = self.num_skipped = 0
        self._weights = weights
        self._tied = tied
        self._may_guess = validate == "post"
        self._offloads_state = offload_state
        self._expects_to_clip = False
        self._pending: _Pending | None = None
        # A process that ends while the others still settle this step would break their connection.
        atexit.register(_settle_at_exit, ref(self))

    @property
    def settings(self) -> dict[str, Any]:
        """What all ranks must have been given alike."""
        scaler = None if self.loss_scaler is None else self.loss_scaler.settings
        validate = "post" if self._may_guess else "sync"
        return {"validate": validate, "loss scaler": scaler}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of this rank; empty where it holds nothing to train."""
        return [] if self.inner is None else self.inner.param_groups

    @property
    def is_pending(self) -> bool:
        """Whether the outcome of the last step is not yet known on every rank."""
        return self._pending is not None

    @torch.no_grad()
    def step(self) -> None:
        """Clip, check and step on all ranks, then drop the gradients.

        On CUDA the host waits for the gradients of this rank, whose norm it sends.

        Raises:
            PipelineError: another rank has gone.
            UsageError: the state is offloaded, but ``step`` has got hooks.
        """
        self.settle()
        if self._offloads_state and self.inner is not None:
            must_be_steppable_in_buckets(self.inner)
        self.num_steps += 1
        with naming_the_cause(self._tied.rank, f"optimizer step {self.num_steps}"):
            self._tied.sum_gradients(self._weights.all_working)
            owned = self._weights.collect_gradients()
            self._unscale(owned)
            part = self._add_squares(owned)
            guesses = self._guesses(part)
            part[1] += guesses
            self.agreement.pass_on(part)
            if guesses:
                begun = None if self.inner is None else attempt(self._weights, owned)
                self._pending = _Pending(begun, None)
                return
            agreement = self.agreement
            verdict = agreement.judge(part) if agreement.is_last else agreement.verdict()
            self._take(owned, verdict)
            self._pending = _Pending(None, verdict)
            if verdict.num_guesses == 0:
                self.settle()

    @torch.no_grad()
    def take_parameters(self) -> None:
        """Give master weights the values of parameters that have been set from outside."""
        self._weights.take()

    def zero_grad(self) -> None:
        """Drop all gradients of this rank."""
        self._weights.drop_gradients()

    def synchronize(self) -> None:
        """Wait until the outcome of the last step is known; all ranks must call this together."""
        self.settle()
        if self.inner is not None:
            self._weights.state.finish()

    @torch.no_grad()
    def settle(self) -> bool:
        """Let a pending step stand, do it over or undo it.

        Returns:
            Whether forwards that have run since, on any rank, had wrong parameters.
        """
        if self._pending is None:
            return False
        begun, verdict = self._pending.attempt, self._pending.verdict
        verdict = verdict or self.agreement.verdict()
        if begun is not None:
            begun.end(verdict)
        self._pending = None
        self._note(verdict)
        return verdict.refutes_guesses

    def state_dict(self) -> dict[str, Any]:
        """Give this rank's state: of the inner optimizer, master weights, loss scale, counters.

        All ranks must call this together.
        """
        self.synchronize()
        return {
            "inner": None if self.inner is None else self.inner.state_dict(),
            "master_weights": [master.detach().clone() for master in self._weights.masters],
            "loss_scaler": None if self.loss_scaler is None else self.loss_scaler.state_dict(),
            "counters": {name: getattr(self, name) for name in _COUNTERS},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave on this rank; all ranks must call this together.

        Raises:
            UsageError: the state is that of an optimizer with other settings.
        """
        self.synchronize()
        if not isinstance(state, dict) or not state.keys() >= {"inner", "master_weights"}:
            raise UsageError(
                "give what state_dict of a pipeline's optimizer gave, not another state"
            )
        masters, scaler = list(self._weights.masters), self.loss_scaler
        fits = (
            (state["inner"] is None) == (self.inner is None)
            and len(state["master_weights"]) == len(masters)
            and (state.get("loss_scaler") is None) == (scaler is None)
        )
        if not fits:
            raise UsageError(
                "this state is of an optimizer with other parameters, master weights or loss "
                "scaler on this rank: build it as it was when the state was saved"
            )
        if self.inner is not None:
            self._weights.state.load(state["inner"])
        if scaler is not None:
            scaler.load_state_dict(state["loss_scaler"])
        for master, value in zip(masters, state["master_weights"], strict=True):
            master.copy_(value)
        self._weights.round(masters)
        for name, value in state.get("counters", {}).items():
            setattr(self, name, value)

    def _unscale(self, owned: Sequence[nn.Parameter]) -> None:
        if self.loss_scaler is not None:
            multiply([p.grad for p in owned if p.grad is not None], 1 / self.loss_scaler.scale)

    def _add_squares(self, owned: Sequence[nn.Parameter]) -> Tensor:
        """Add this rank's squared norms to those of the ranks before; float64, on the CPU."""
        # All ranks compute their squares at once; only the sum runs down the ranks.
        counted = [p for p in owned if self._weights.working(p) not in self._tied.repeated]
        squares = [_square(p.grad) for p in counted if p.grad is not None]
        known = torch.stack(squares).cpu() if squares else ()
        part = self.agreement.part_before()
        for square in known:
            part[0] += square
        return part

    def _guesses(self, part: Tensor) -> bool:
        """Decide whether to step before the norm over all ranks is known."""
        return (
            self._may_guess
            and not self.agreement.is_last
            and not self._expects_to_clip
            and not (self.inner is not None and must_see_what_stands(self.inner))
            and self.agreement.judge(part).is_plain
        )

    def _take(self, owned: Sequence[nn.Parameter], verdict: Verdict) -> None:
        """Take the step as it will stand, and drop the gradients."""
        if verdict.is_finite and self.inner is not None:
            multiply([p.grad for p in owned if p.grad is not None], verdict.factor)
            if self._offloads_state:
                step_in_buckets(self._weights)
            else:
                self.inner.step()
            self._weights.round(owned)
        self.zero_grad()

    def _note(self, verdict: Verdict) -> None:
        """Count the outcome of a step, at the same point of the program on every rank."""
        self.grad_norm = verdict.norm
        self._expects_to_clip = verdict.factor < 1
        self.num_validated += verdict.num_guesses > 0 and verdict.is_plain
        self.num_clipped += verdict.factor < 1
        self.num_skipped += not verdict.is_finite
        if self.loss_scaler is not None:
            self.loss_scaler.update(verdict.is_finite)


def _settle_at_exit(optimizer: "ref[PipelineOptimizer]") -> None:
    """Settle what a script has left pending, unless it ends because of an error."""
    left = optimizer()
    if left is not None and left.is_pending and not hasattr(sys, "last_value"):
        with suppress(Exception):  # the connections may have been closed already
            left.synchronize()


def _square(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float64)
    return norm.square()
