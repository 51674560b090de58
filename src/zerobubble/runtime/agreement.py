"""Is the gradient over all ranks finite, and must it be clipped? All ranks come to one verdict.

The squared norms are added along the ranks, in the order of their first stages; the last one knows
the whole state and sends it to all others (arXiv 2401.10241, section 4). Every receive is posted
before its message can be sent, so that no rank waits for one that is behind it. The sum is float64
and its root is rounded to float32, so that the order of the ranks does not show.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.loss import LOSS_TAG
from zerobubble.runtime.transport import Transport, Work


@dataclass(frozen=True)
class Verdict:
    """What is to be done with the gradients of a step.

    Attributes:
        norm: of all gradients, before clipping.
        factor: by which they are multiplied; 1 where nothing is clipped.
        num_guesses: how many ranks have stepped before they knew.
    """

    norm: float
    factor: float
    num_guesses: int

    @property
    def is_finite(self) -> bool:
        """Whether there is a step at all."""
        return math.isfinite(self.norm)

    @property
    def is_plain(self) -> bool:
        """Whether the gradients are used as they are: what a guess stands for."""
        return self.is_finite and self.factor == 1

    @property
    def refutes_guesses(self) -> bool:
        """Whether any rank has run forwards with wrong parameters."""
        return self.num_guesses > 0 and not self.is_plain


def must_be_the_same(transport: Transport, settings: Mapping[str, Any]) -> None:
    """Compare what the ranks were given; all must call this together.

    Raises:
        UsageError: something differs; on every rank.
    """
    of_ranks = transport.share_object(dict(settings))
    for rank, others in enumerate(of_ranks):
        for name, value in others.items():
            if value != of_ranks[0][name]:
                raise UsageError(
                    f"ranks 0 and {rank} have {name} {of_ranks[0][name]} and {value}: give all "
                    "ranks the same"
                )


class Agreement:
    """The messages of one optimizer about the norm of its gradients.

    Args:
        transport: the connections of this rank.
        chain: the ranks in the order of their first stages.
        number: of the optimizer among those of the pipeline.
        max_grad_norm: above which gradients are clipped; None: never.

    Raises:
        UsageError: ``max_grad_norm`` is not positive.
    """

    def __init__(
        self,
        transport: Transport,
        chain: Sequence[int],
        number: int,
        max_grad_norm: float | None,
    ) -> None:
        is_number = isinstance(max_grad_norm, int | float) and max_grad_norm > 0
        if max_grad_norm is not None and not is_number:
            raise UsageError(f"max_grad_norm must be a positive number, not {max_grad_norm!r}")
        self.max_grad_norm = max_grad_norm
        self.num_steps = 0
        position = chain.index(transport.rank)
        self.before = chain[position - 1] if position else None
        self.after = chain[position + 1] if position + 1 < len(chain) else None
        self.last = chain[-1]
        self._others = chain[:-1]
        self._transport = transport
        self._part_tag = LOSS_TAG + 1 + 2 * number
        self._part: tuple[Tensor, Work] | None = None
        self._whole: tuple[Tensor, Work] | None = None

    @property
    def is_last(self) -> bool:
        """Whether this rank knows the whole state first."""
        return self.after is None

    def expect(self) -> None:
        """Post the receive of the part of the ranks before, which a step needs, unless it is."""
        if self.before is not None and self._part is None:
            self._part = self._receive(self.before, self._part_tag)

    def part_before(self) -> Tensor:
        """Begin a step: wait for the squared norm and the guesses of the ranks before; float64."""
        self.num_steps += 1
        if self.before is None:
            return torch.zeros(2, dtype=torch.float64)
        self.expect()
        assert self._part is not None
        part, work = self._part
        self._wait(work, self.before)
        self._part = None
        return part

    def pass_on(self, part: Tensor) -> None:
        """Send the state up to this rank to the next one, the whole state to all."""
        send = self._transport.start_send
        if self.after is None:
            works = [send(part, rank, self._part_tag + 1) for rank in self._others]
        else:
            self._whole = self._receive(self.last, self._part_tag + 1)
            works = [send(part, self.after, self._part_tag)]
        for work, peer in zip(works, self._others if self.is_last else [self.after], strict=True):
            self._wait(work, peer)

    def verdict(self) -> Verdict:
        """Wait for the whole state."""
        assert self._whole is not None, "the last rank in the chain knows it"
        whole, work = self._whole
        self._wait(work, self.last)
        self._whole = None
        return self.judge(whole)

    def judge(self, part: Tensor) -> Verdict:
        """Say what a state amounts to; one that is clipped or not finite stays so further on."""
        norm, factor = part[0].sqrt().float(), 1.0
        if self.max_grad_norm is not None and norm.isfinite():
            factor = min(1.0, float(self.max_grad_norm / (norm + 1e-6)))
        return Verdict(float(norm), factor, int(part[1]))

    def _wait(self, work: Work, peer: int | None) -> None:
        with naming_the_cause(self._transport.rank, f"optimizer step {self.num_steps}", peer):
            self._transport.wait([work])

    def _receive(self, peer: int, tag: int) -> tuple[Tensor, Work]:
        state = torch.zeros(2, dtype=torch.float64)
        return state, self._transport.start_receive(state, peer, tag)
