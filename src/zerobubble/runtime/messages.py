"""How does the output of an op on one rank become the input of an op on another?

The reader of a message must know its layout before it can post the receive. Layouts depend on the
shapes of the microbatch only: the first time that shapes are met, every activation is preceded by
its layout in the control group and receives wait until it is there; from then on nothing but
tensors travels. Gradients never need a layout, because their reader produced the tensors they
belong to.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor

from zerobubble.errors import UsageError
from zerobubble.ir import Kind, Op, Schedule
from zerobubble.lower import Action, Instruction
from zerobubble.runtime.boundary import Layout
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.transport import MAX_TENSORS_PER_MESSAGE, Transport, Work


@dataclass
class Layouts:
    """What the outputs of the stages look like for samples of one shape.

    Attributes:
        of_output: the layout for each stage and number of samples in the microbatch.
        sizes: the numbers of samples for which all layouts are known.
    """

    of_output: dict[tuple[int, int], Layout] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)


class _Message(NamedTuple):
    """The output of an op on its way: what a program's instructions on it need at once.

    Attributes:
        op: whose output it is.
        peer: the other rank; -1 if it stays on this one.
        code: of the op; names the message on both ranks.
        boundary: the stage whose output, or the gradient of whose output, it is.
        source: the stage here that makes it; None if it comes from the peer.
        reader: the stage here that reads it; None if it goes to the peer.
    """

    op: Op
    peer: int
    code: int
    boundary: int
    source: Stage | None
    reader: Stage | None


Tensors = list[Tensor]


class Messages:
    """The messages of one rank: ``bind`` turns an instruction on a message into a call."""

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
        self._layouts = Layouts()
        self._sizes: tuple[int, ...] = ()
        self._is_known = False
        self._posted: dict[int, tuple[Tensors, list[Work]]] = {}
        self._sent: dict[int, tuple[Tensors, list[Work]]] = {}
        self._postponed: dict[int, deque[_Message]] = {}

    def bind(self, instruction: Instruction) -> Callable[[], object]:
        """Give the call that carries out an instruction on a message."""
        action, op, peer = instruction
        is_forward = op.kind is Kind.F
        actions = {
            Action.RECEIVE: self._receive,
            Action.AWAIT: self._wait_for,
            Action.DISCARD: self._discard,
            Action.SEND: self._send,
            Action.HAND_OVER: self._hand_over,
            Action.RELEASE: self._release,
        }
        message = _Message(
            op,
            peer,
            self.schedule.code(op),
            op.stage if is_forward else op.stage - 1,
            self.stages.get(op.stage),
            self.stages.get(op.stage + 1 if is_forward else op.stage - 1),
        )
        return partial(actions[action], message)

    def begin(self, layouts: Layouts, sizes: tuple[int, ...]) -> None:
        """Begin a step with the layouts known so far and the samples of its microbatches."""
        self._layouts, self._sizes = layouts, sizes
        self._is_known = layouts.sizes.issuperset(sizes)

    def end(self) -> None:
        """Note after a step that its layouts are known."""
        self._layouts.sizes.update(self._sizes)

    def sizes_of(self, ops: Sequence[Op]) -> Callable[[], list[int]]:
        """Give the call that tells how many bytes the messages of this step with these ops have."""
        return partial(_sizes, self._layouts, self._sizes, ops)

    def _key(self, message: _Message) -> tuple[int, int]:
        return message.boundary, self._sizes[message.op.microbatch]

    def _receive(self, message: _Message) -> None:
        """Post the receive of a message, or postpone it until its layout is known."""
        if self._is_known:
            self._post(message)
        else:
            self._postponed.setdefault(message.peer, deque()).append(message)

    def _wait_for(self, message: _Message) -> None:
        """Wait for a message and give its tensors to the stage that reads them."""
        tensors = self._discard(message)
        self._deliver(message, tensors, self._layouts.of_output[self._key(message)])

    def _discard(self, message: _Message) -> Tensors:
        """Wait for a message and give it to nobody; return its tensors."""
        while message.code not in self._posted:
            postponed = self._postponed[message.peer].popleft()
            if postponed.op.kind is Kind.F:
                layout = self.transport.receive_object(message.peer)
                self._layouts.of_output[self._key(postponed)] = layout
            self._post(postponed)
        tensors, works = self._posted.pop(message.code)
        self.transport.wait(works)
        return tensors

    def _post(self, message: _Message) -> None:
        layout = self._layouts.of_output[self._key(message)]
        specs = layout.tensors if message.op.kind is Kind.F else layout.gradients
        tensors = [spec.allocate(self.transport.device) for spec in specs]
        self.ledger.track_boundary(tensors)
        works = self.transport.receive(tensors, message.peer, message.code)
        self._posted[message.code] = (tensors, works)

    def _send(self, message: _Message) -> None:
        """Start to send an op's output; its buffers live until it is released."""
        tensors, layout = self._take(message)
        if layout is not None:
            self._check(message, layout)
            if not self._is_known:
                self._layouts.of_output[self._key(message)] = layout
                self.transport.send_object(layout, message.peer)
        self.ledger.track_boundary(tensors)
        self._sent[message.code] = (
            tensors,
            self.transport.send(tensors, message.peer, message.code),
        )

    def _check(self, message: _Message, layout: Layout) -> None:
        """Refuse an output that its reader does not expect."""
        known = self._layouts.of_output.get(self._key(message))
        op, num_tensors = message.op, len(layout.tensors)
        if known is not None and layout is not known and layout != known:
            raise UsageError(
                f"the output of stage {op.stage} changed from {known} to {layout} although the "
                "batch has the same shapes: a stage's output must follow from the batch's shapes; "
                "after freezing or unfreezing parameters, build the pipeline anew"
            )
        if num_tensors > MAX_TENSORS_PER_MESSAGE:
            raise UsageError(
                f"the output of stage {op.stage} has {num_tensors} tensors; at most "
                f"{MAX_TENSORS_PER_MESSAGE} can cross a stage boundary: stack some of them"
            )

    def _hand_over(self, message: _Message) -> None:
        """Give an op's output to the neighbouring stage on this rank."""
        self._deliver(message, *self._take(message))

    def _take(self, message: _Message) -> tuple[Tensors, Layout | None]:
        assert message.source is not None
        if message.op.kind is Kind.F:
            return message.source.take_output(message.op.microbatch)
        return message.source.take_input_gradients(message.op.microbatch), None

    def _deliver(self, message: _Message, tensors: Tensors, layout: Layout | None) -> None:
        assert message.reader is not None
        if message.op.kind is Kind.F:
            assert layout is not None
            message.reader.give_input(message.op.microbatch, tensors, layout)
        else:
            message.reader.give_gradients(message.op.microbatch, tensors)

    def _release(self, message: _Message) -> None:
        """Drop the buffers of a message that has been read."""
        _, works = self._sent.pop(message.code)
        self.transport.wait(works)

    def reset(self) -> None:
        """Forget all messages of the step."""
        for held in (self._posted, self._sent, self._postponed):
            held.clear()


def _sizes(layouts: Layouts, samples: Sequence[int], ops: Sequence[Op]) -> list[int]:
    sizes = []
    for kind, stage, microbatch in ops:
        boundary = stage if kind is Kind.F else stage - 1
        layout = layouts.of_output[boundary, samples[microbatch]]
        specs = layout.tensors if kind is Kind.F else layout.gradients
        sizes.append(sum(spec.num_bytes for spec in specs))
    return sizes
