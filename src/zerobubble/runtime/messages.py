"""How does the output of an op on one rank become the input of an op on another?

The reader of a message must know its layout before it can post the receive. Layouts depend on the
shapes of the batch only: the first time that shapes are met, every activation is preceded by its
layout in the control group and receives wait until it is there; from then on nothing but tensors
travels. Gradients never need a layout, because their reader produced the tensors they belong to.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.ir import Kind, Op, Schedule
from zerobubble.runtime.boundary import Layout, TensorSpec
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.transport import MAX_TENSORS_PER_MESSAGE, Transport, Work


@dataclass
class Layouts:
    """What the outputs of the stages look like for one shape of batch."""

    of_stage: dict[int, Layout] = field(default_factory=dict)
    is_complete: bool = False


class Messages:
    """The messages of one rank: one method for each action of a program on a message."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        transport: Transport,
        ledger: Ledger,
    ) -> None:
        self.schedule = schedule
        self.stages = stages
        self.transport = transport
        self.ledger = ledger
        self.layouts = Layouts()
        self._posted: dict[Op, tuple[list[Tensor], list[Work]]] = {}
        self._sent: dict[Op, tuple[list[Tensor], list[Work]]] = {}
        self._postponed: dict[int, deque[Op]] = {}

    def receive(self, op: Op, peer: int) -> None:
        """Post the receive of a message, or postpone it until its layout is known."""
        if self.layouts.is_complete:
            self._post(op, peer)
        else:
            self._postponed.setdefault(peer, deque()).append(op)

    def wait_for(self, op: Op, peer: int) -> None:
        """Wait for a message and give its tensors to the stage that reads them."""
        self._deliver(op, self.discard(op, peer), self.layouts.of_stage[_boundary(op)])

    def discard(self, op: Op, peer: int) -> list[Tensor]:
        """Wait for a message and give it to nobody; return its tensors."""
        while op not in self._posted:
            postponed = self._postponed[peer].popleft()
            if postponed.kind is Kind.F:
                self.layouts.of_stage[postponed.stage] = self.transport.receive_object(peer)
            self._post(postponed, peer)
        tensors, works = self._posted.pop(op)
        for work in works:
            work.wait()
        return tensors

    def _post(self, op: Op, peer: int) -> None:
        tensors = [spec.allocate(self.transport.device) for spec in self._specs(op)]
        self.ledger.track(tensors)
        works = self.transport.receive(tensors, peer, self.schedule.code(op))
        self._posted[op] = (tensors, works)

    def _specs(self, op: Op) -> tuple[TensorSpec, ...]:
        layout = self.layouts.of_stage[_boundary(op)]
        return layout.tensors if op.kind is Kind.F else layout.gradients

    def send(self, op: Op, peer: int) -> None:
        """Start to send an op's output; its buffers live until it is released."""
        if op.kind is Kind.F:
            tensors, layout = self.stages[op.stage].take_output(op.microbatch)
            self._check(op, layout, len(tensors))
            if not self.layouts.is_complete:
                self.layouts.of_stage[op.stage] = layout
                self.transport.send_object(layout, peer)
        else:
            tensors = self.stages[op.stage].take_input_gradients(op.microbatch)
        self.ledger.track(tensors)
        self._sent[op] = (tensors, self.transport.send(tensors, peer, self.schedule.code(op)))

    def _check(self, op: Op, layout: Layout, num_tensors: int) -> None:
        """Refuse an output that its reader does not expect."""
        known = self.layouts.of_stage.get(op.stage)
        if known is not None and layout != known:
            raise UsageError(
                f"the output of stage {op.stage} changed from {known} to {layout} although the "
                "batch has the same shapes: a stage's output must follow from the batch's shapes"
            )
        if num_tensors > MAX_TENSORS_PER_MESSAGE:
            raise UsageError(
                f"the output of stage {op.stage} has {num_tensors} tensors; at most "
                f"{MAX_TENSORS_PER_MESSAGE} can cross a stage boundary: stack some of them"
            )

    def hand_over(self, op: Op) -> None:
        """Give an op's output to the neighbouring stage on this rank."""
        if op.kind is Kind.F:
            tensors, layout = self.stages[op.stage].take_output(op.microbatch)
        else:
            tensors, layout = self.stages[op.stage].take_input_gradients(op.microbatch), None
        self._deliver(op, tensors, layout)

    def _deliver(self, op: Op, tensors: list[Tensor], layout: Layout | None) -> None:
        if op.kind is Kind.F:
            assert layout is not None
            self.stages[op.stage + 1].give_input(op.microbatch, tensors, layout)
        else:
            self.stages[op.stage - 1].give_gradients(op.microbatch, tensors)

    def release(self, op: Op) -> None:
        """Drop the buffers of a message that has been read."""
        _, works = self._sent.pop(op)
        for work in works:
            work.wait()

    def reset(self) -> None:
        """Forget all messages of the step."""
        for held in (self._posted, self._sent, self._postponed):
            held.clear()


def _boundary(op: Op) -> int:
    """Name the stage whose output, or the gradient of whose output, an op produces."""
    return op.stage if op.kind is Kind.F else op.stage - 1
