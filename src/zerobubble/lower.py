"""What does each rank execute? A schedule becomes one Program a rank, proved free of deadlock.

A message carries the output of one op to another rank and is named by that op. Between two ranks
and in one direction, messages are received in the order in which they are sent, so that a
transport without tags works too. A receive is posted a bounded number of messages before the op
that needs it, and a send buffer is dropped as soon as the schedule shows that it has been read:
the number of live buffers does not depend on the number of microbatches.

While the layouts of the messages are unknown, in the first step for a shape of batch, no receive
can be posted ahead of its need, and sends must not block until the release of their buffer. The
programs are proved to finish in both ways.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zerobubble.errors import ScheduleError
from zerobubble.graph import producers, run_order
from zerobubble.ir import Kind, Op, Schedule


class Action(Enum):
    """What one instruction does with an op or with the message that carries its output."""

    RECEIVE = "post the receive of a message"
    AWAIT = "wait until a message is there, and give it to the stage that reads it"
    RUN = "run an op"
    SEND = "start to send a message"
    HAND_OVER = "give an op's output to the neighbouring stage on the same rank"
    RELEASE = "drop the buffer of a message that has been read"


class Instruction(NamedTuple):
    """One step of a program; ``peer`` is the other rank, or -1 where none takes part."""

    action: Action
    op: Op
    peer: int = -1

    def __str__(self) -> str:
        direction = "from" if self.action in (Action.RECEIVE, Action.AWAIT) else "to"
        where = "" if self.peer < 0 else f" {direction} rank {self.peer}"
        return f"{self.action.name} {self.op}{where}"


@dataclass(frozen=True)
class Program:
    """The instructions of one rank, in the order it executes them.

    Attributes:
        rank: who executes it.
        instructions: what to do.
        num_receives_ahead: how many messages of each peer are awaited beyond those needed so far.
    """

    rank: int
    instructions: tuple[Instruction, ...]
    num_receives_ahead: int


def lower(schedule: Schedule) -> tuple[Program, ...]:
    """Lower a schedule to one program for each rank.

    The smallest look-ahead of receives is taken for which no deadlock can occur even if every
    send blocks until its receive is posted, and the smallest window of sends for which none can
    occur without look-ahead either: one message, or two where two ranks take turns, and as many
    times two sends for each rank are enough for all common schedules.

    Raises:
        ScheduleError: the ops wait for each other in a circle.

    >>> from zerobubble import build
    >>> programs = lower(build("1f1b", num_ranks=2, num_microbatches=2))
    >>> for instruction in programs[1].instructions[:5]:
    ...     print(instruction)
    RECEIVE F0 of stage 0 from rank 0
    RECEIVE F1 of stage 0 from rank 0
    AWAIT F0 of stage 0 from rank 0
    RUN F0 of stage 1
    RUN BW0 of stage 1
    """
    run_order(schedule)
    messages = _Messages(schedule)
    ahead = 1
    while True:
        programs = tuple(
            Program(rank, tuple(_instructions(messages, rank, ahead)), ahead)
            for rank in range(schedule.num_ranks)
        )
        try:
            prove_no_deadlock(programs)
            prove_no_deadlock(tuple(map(_received_late, programs)), sends_block=False)
        except ScheduleError:
            assert ahead < schedule.num_ops, "posting every receive first always works"
            ahead *= 2
        else:
            return programs


class _Message(NamedTuple):
    """Which op of which rank reads the output of an op, and where both stand in their orders."""

    op: Op
    sender: int
    sent_at: int
    reader: int
    read_at: int


class _Messages:
    """All messages of a schedule, by sender and reader."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.sent: dict[tuple[int, int], _Message] = {}
        self.read: dict[tuple[int, int], _Message] = {}
        self.handed_over: set[Op] = set()
        self.queues: dict[tuple[int, int], list[_Message]] = defaultdict(list)
        needs = producers(schedule)
        place = {
            code: (rank, index)
            for rank, order in enumerate(schedule.orders)
            for index, code in enumerate(order.tolist())
        }
        for code, (reader, read_at) in place.items():
            if needs[code] < 0:
                continue
            reading, op = schedule.op(code), schedule.op(needs[code])
            sender, sent_at = place[int(needs[code])]
            if sender != reader:
                message = _Message(op, sender, sent_at, reader, read_at)
                self.sent[sender, sent_at] = self.read[reader, read_at] = message
            elif reading.stage != op.stage:
                self.handed_over.add(op)
        for _, message in sorted(self.sent.items()):
            self.queues[message.sender, message.reader].append(message)


def _instructions(messages: _Messages, rank: int, ahead: int) -> Iterator[Instruction]:
    """Yield the instructions of one rank: receives, op, releases and then what becomes of it."""
    window = 2 * messages.schedule.num_ranks * ahead
    receives = [
        _Receives(queue, ahead) for (_, reader), queue in messages.queues.items() if reader == rank
    ]
    unread: dict[int, list[_Message]] = defaultdict(list)
    for index, op in enumerate(messages.schedule.ops(rank)):
        incoming = messages.read.get((rank, index))
        for queue in receives:
            yield from queue.post_for(incoming)
        if incoming:
            yield Instruction(Action.AWAIT, incoming.op, incoming.sender)
        yield Instruction(Action.RUN, op)
        if incoming:
            read = [m for m in unread[incoming.sender] if m.read_at <= incoming.sent_at]
            yield from _release(read, unread[incoming.sender])
        if outgoing := messages.sent.get((rank, index)):
            peer = outgoing.reader
            yield from _release(unread[peer][: len(unread[peer]) + 1 - window], unread[peer])
            unread[peer].append(outgoing)
            yield Instruction(Action.SEND, op, peer)
        elif op in messages.handed_over:
            yield Instruction(Action.HAND_OVER, op)
    for peer in list(unread):
        yield from _release(list(unread[peer]), unread[peer])


def _release(messages: list[_Message], unread: list[_Message]) -> Iterator[Instruction]:
    for message in messages:
        unread.remove(message)
        yield Instruction(Action.RELEASE, message.op, message.reader)


class _Receives:
    """The messages of one sender to one reader, posted in the order they are sent."""

    def __init__(self, queue: list[_Message], ahead: int) -> None:
        self.queue = queue
        self.positions = {message.op: index for index, message in enumerate(queue)}
        self.num_posted = 0
        self.num_wanted = ahead
        self.ahead = ahead

    def post_for(self, incoming: _Message | None) -> Iterator[Instruction]:
        """Yield the receives up to the message needed now and ``ahead`` messages more."""
        if incoming and incoming.op in self.positions:
            needed = self.positions[incoming.op] + 1
            self.num_wanted = max(self.num_wanted, needed + self.ahead)
        for message in self.queue[self.num_posted : self.num_wanted]:
            yield Instruction(Action.RECEIVE, message.op, message.sender)
        self.num_posted = max(self.num_posted, min(self.num_wanted, len(self.queue)))


def _from(instructions: tuple[Instruction, ...], first: int) -> Iterator[Instruction]:
    return (instructions[index] for index in range(first, len(instructions)))


def _received_late(program: Program) -> Program:
    """Post every receive no earlier than it, or a later one from the same peer, is awaited."""
    postponed: dict[int, deque[Instruction]] = defaultdict(deque)
    posted: set[Op] = set()
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        action, op, peer = instruction
        if action is Action.RECEIVE:
            postponed[peer].append(instruction)
            continue
        while action is Action.AWAIT and op not in posted:
            receive = postponed[peer].popleft()
            posted.add(receive.op)
            instructions.append(receive)
        instructions.append(instruction)
    return Program(program.rank, tuple(instructions), 0)


def prove_no_deadlock(programs: tuple[Program, ...], sends_block: bool = True) -> None:
    """Show that the programs finish even if every send blocks until its receive is posted.

    With ``sends_block`` false, only the release of its buffer does. What one rank executes only
    ever enables others, so if one interleaving reaches the end, all do: it is enough to run each
    rank as far as it goes, again and again.

    Raises:
        ScheduleError: some ranks wait for each other; the message names what they wait for.
    """
    counters = [0] * len(programs)
    posted: set[Op] = set()
    sent: set[Op] = set()
    may_pass = {Action.RELEASE: posted, Action.AWAIT: sent}
    if sends_block:
        may_pass[Action.SEND] = posted
    records = {Action.RECEIVE: posted, Action.SEND: sent}
    waiting: dict[tuple[Action, Op], int] = {}
    runnable = list(range(len(programs)))
    while runnable:
        rank = runnable.pop()
        for action, op, _ in _from(programs[rank].instructions, counters[rank]):
            if action in may_pass and op not in may_pass[action]:
                enabler = Action.SEND if action is Action.AWAIT else Action.RECEIVE
                waiting[enabler, op] = rank
                break
            counters[rank] += 1
            if action in records:
                records[action].add(op)
                if (action, op) in waiting:
                    runnable.append(waiting.pop((action, op)))
    stopped = [
        f"rank {rank} stops at {program.instructions[counters[rank]]}"
        for rank, program in enumerate(programs)
        if counters[rank] < len(program.instructions)
    ]
    if stopped:
        raise ScheduleError(f"deadlock: {'; '.join(stopped)}: post receives earlier")


def forward_only(schedule: Schedule) -> Schedule:
    """Keep nothing but the forwards of a schedule, in their order: what evaluation runs."""
    orders = tuple(order[schedule.fields(order)[0] == Kind.F] for order in schedule.orders)
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, orders)
