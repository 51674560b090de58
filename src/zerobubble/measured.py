"""What is known of a run that was measured? When its ops and its messages really took place."""

from dataclasses import dataclass

from zerobubble.costs import Costs, Floats
from zerobubble.ir import Op, Schedule
from zerobubble.simulate import Timeline


@dataclass(frozen=True)
class Transfer:
    """The output of an op on its way from one rank to another.

    Attributes:
        op: whose output travels: of F the activation it sends on, of B or BW the gradient that it
            sends back.
        sender: the rank that ran the op.
        reader: the rank that needs the output.
        sent: when the sender issued the send, in ms.
        arrived: when the reader's wait for it was over, in ms; it may have been there earlier.
        num_bytes: size of all its tensors.
    """

    op: Op
    sender: int
    reader: int
    sent: float
    arrived: float
    num_bytes: int


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """One measured training step; times in ms, 0 where the first op of any rank starts.

    Attributes:
        number: of the step in its run, the first is 1.
        timeline: when the ops ran on their devices.
        host_start: for each rank, when its host began to issue every op, in the rank's order. On a
            CPU, where the host runs the ops itself, it is the start of the timeline.
        host_end: likewise when it had issued the op.
        transfers: between ranks, in the order of the senders and of their ops.
    """

    number: int
    timeline: Timeline
    host_start: tuple[Floats, ...]
    host_end: tuple[Floats, ...]
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """The measured steps of a run, beside what was expected of it.

    Attributes:
        schedule: what ran.
        costs: expected times of the ops and transfers, in ms, and sizes of the activations; None
            where nothing was expected in ms.
        steps: in the order in which they ran; there may be none.
    """

    schedule: Schedule
    costs: Costs | None
    steps: tuple[MeasuredStep, ...]
