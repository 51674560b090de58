"""What does each rank execute? A schedule becomes one Program a rank, proved free of deadlock.

A message carries the output of one op to another rank and is named by that op. Between two ranks
and in one direction, messages are received in the order in which they are sent, so that a
transport without tags works too. A receive is posted a bounded number of messages before the op
that needs it, and a send buffer is dropped as soon as the schedule shows that it has been read:
the number of live buffers does not depend on the number of microbatches.

While the layouts of the messages are unknown, in the first step for a shape of batch, no receive
can be posted ahead of its need, and sends must not block until the release of their buffer. The
programs are proved to finish in both ways.

The optimizer may have stepped on a guess; at VALIDATE a rank learns whether that was right. What
comes before are the forwards of the warm-up: no backward anywhere has run by then, so that all
ranks have ended the step before, and VALIDATE waits for nothing of this one (arXiv 2401.10241,
section 4). If the guess was wrong, all ranks take back what they ran by the instructions of
``Program.retreat`` and begin again; these are proved to finish too.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobubble.errors import ScheduleError
from zerobubble.graph import places, producers, run_order
from zerobubble.ir import Kind, Op, Schedule


class Action(Enum):
    """What one instruction does with an op or with the message that carries its output."""

    RECEIVE = "post the receive of a message"
    AWAIT = "wait until a message is there, and give it to the stage that reads it"
    RUN = "run an op"
    SEND = "start to send a message"
    HAND_OVER = "give an op's output to the neighbouring stage on the same rank"
    RELEASE = "drop the buffer of a message that has been read"
    VALIDATE = "learn whether the optimizer's last step stands"
    REPORT = "tell the other ranks the loss"
    DISCARD = "wait until a message is there, and drop it"


class Instruction(NamedTuple):
    """One step of a program; ``peer`` is the other rank, or -1 where none takes part."""

    action: Action
    op: Op
    peer: int = -1

    def __str__(self) -> str:
        sending = self.action in (Action.SEND, Action.RELEASE)
        direction = "to" if sending else "from"
        where = "" if self.peer < 0 else f" {direction} rank {self.peer}"
        return f"{self.action.name} {self.op}{where}"


@dataclass(frozen=True)
class Program:
    """The instructions of one rank, in the order it executes them.

    Attributes:
        rank: who executes it.
        instructions: what to do.
        num_receives_ahead: how many messages of each peer are awaited beyond those needed so far.
        retreat: what to do at VALIDATE before the program can begin again: drop all messages that
            are under way to this rank, release all that it has sent.
    """

    rank: int
    instructions: tuple[Instruction, ...]
    num_receives_ahead: int
    retreat: tuple[Instruction, ...] = ()

    @property
    def to_validation(self) -> tuple[Instruction, ...]:
        """The instructions up to VALIDATE and with it; none in a program without it."""
        actions = [action for action, _, _ in self.instructions]
        end = actions.index(Action.VALIDATE) + 1 if Action.VALIDATE in actions else 0
        return self.instructions[:end]

    @property
    def warm_up(self) -> tuple[Instruction, ...]:
        """The instructions before VALIDATE."""
        return self.to_validation[:-1]


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
    >>> for instruction in programs[1].instructions[:6]:
    ...     print(instruction)
    RECEIVE F0 of stage 0 from rank 0
    RECEIVE F1 of stage 0 from rank 0
    AWAIT F0 of stage 0 from rank 0
    RUN F0 of stage 1
    VALIDATE BW0 of stage 1
    RUN BW0 of stage 1
    """
    run_order(schedule)
    messages = _Messages(schedule)
    ahead = 1
    while True:
        programs = tuple(_program(messages, rank, ahead) for rank in range(schedule.num_ranks))
        try:
            for proved in (programs, tuple(map(_abandoned, programs))):
                prove_no_deadlock(proved)
                prove_no_deadlock(tuple(map(_received_late, proved)), sends_block=False)
        except ScheduleError:
            assert ahead < schedule.num_ops, "posting every receive first always works"
            ahead *= 2
        else:
            return programs


def _abandoned(program: Program) -> Program:
    """Say what a rank executes of a program that it takes back at VALIDATE."""
    return Program(program.rank, (*program.warm_up, *program.retreat), program.num_receives_ahead)


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
        self.warm_up_ends = _warm_up_ends(schedule)
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

    def is_of_warm_up(self, message: _Message) -> bool:
        """Say whether a message is sent before the VALIDATE of its sender."""
        return message.sent_at < self.warm_up_ends[message.sender]

    def validates(self, rank: int) -> bool:
        """Say whether there is a VALIDATE in the program of a rank."""
        return self.warm_up_ends[rank] < len(self.schedule.orders[rank])

    def report_after(self, rank: int) -> int:
        """Tell after which op of a rank the loss is known and stands; -1 if it has no loss."""
        kinds, stages, _ = self.schedule.fields(self.schedule.orders[rank])
        last = self.schedule.num_stages - 1
        forwards = np.flatnonzero((kinds == Kind.F) & (stages == last))
        known = int(forwards[-1]) if len(forwards) else -1
        stands = self.validates(rank) and known >= 0
        return max(known, self.warm_up_ends[rank]) if stands else known


def _warm_up_ends(schedule: Schedule) -> list[int]:
    """Count for each rank the ops before its VALIDATE: forwards that need only such forwards.

    What these hold may be offloaded meanwhile.
    """
    needs, (ranks, indices) = producers(schedule), places(schedule)
    kinds = [schedule.fields(order)[0] for order in schedule.orders]
    ends = np.array([_first((kind != Kind.F) & (kind != Kind.O)) for kind in kinds])
    while True:
        earlier = ends.copy()
        for rank, order in enumerate(schedule.orders):
            need = needs[order[: ends[rank]]]
            earlier[rank] = _first((need >= 0) & (indices[need] >= ends[ranks[need]]))
        if (earlier == ends).all():
            return [int(end) for end in ends]
        ends = earlier


def _first(is_wanted: NDArray[np.bool_]) -> int:
    """Find the first wanted element, or the end."""
    return int(np.append(is_wanted, True).argmax())


def _program(messages: _Messages, rank: int, ahead: int) -> Program:
    program = Program(rank, tuple(_instructions(messages, rank, ahead)), ahead)
    if messages.validates(rank):
        return replace(program, retreat=tuple(_retreat(messages, program)))
    return program


def _retreat(messages: _Messages, program: Program) -> Iterator[Instruction]:
    """Yield what becomes of the messages of the warm-up, from and to this rank."""
    done = {(action, op) for action, op, _ in program.warm_up}
    queues = [queue for (_, reader), queue in messages.queues.items() if reader == program.rank]
    for message in chain.from_iterable(queues):
        if messages.is_of_warm_up(message) and (Action.AWAIT, message.op) not in done:
            yield Instruction(Action.DISCARD, message.op, message.sender)
    for action, op, peer in program.warm_up:
        if action is Action.SEND and (Action.RELEASE, op) not in done:
            yield Instruction(Action.RELEASE, op, peer)


def _instructions(messages: _Messages, rank: int, ahead: int) -> Iterator[Instruction]:
    """Yield the instructions of one rank: receives, op, releases and then what becomes of it."""
    window = 2 * messages.schedule.num_ranks * ahead
    receives = [
        _Receives(queue, ahead, sum(map(messages.is_of_warm_up, queue)))
        for (_, reader), queue in messages.queues.items()
        if reader == rank
    ]
    unread: dict[int, list[_Message]] = defaultdict(list)
    end, report_after = messages.warm_up_ends[rank], messages.report_after(rank)
    for index, op in enumerate(messages.schedule.ops(rank)):
        if index == end:
            for queue in receives:
                yield from queue.post_warm_up()
            yield Instruction(Action.VALIDATE, op)
        incoming = messages.read.get((rank, index))
        for queue in receives:
            yield from queue.post_for(incoming, is_warm_up=index < end)
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
        if index == report_after:
            yield Instruction(Action.REPORT, op)
    for peer in list(unread):
        yield from _release(list(unread[peer]), unread[peer])


def _release(messages: list[_Message], unread: list[_Message]) -> Iterator[Instruction]:
    for message in messages:
        unread.remove(message)
        yield Instruction(Action.RELEASE, message.op, message.reader)


class _Receives:
    """The messages of one sender to one reader, posted in the order they are sent.

    At VALIDATE exactly those are posted that are sent before the VALIDATE of the sender: those
    arrive even if all ranks begin again, and no others do.
    """

    def __init__(self, queue: list[_Message], ahead: int, num_in_warm_up: int) -> None:
        self.queue = queue
        self.positions = {message.op: index for index, message in enumerate(queue)}
        self.num_in_warm_up = num_in_warm_up
        self.num_posted = 0
        self.num_wanted = ahead
        self.ahead = ahead

    def post_for(self, incoming: _Message | None, is_warm_up: bool) -> Iterator[Instruction]:
        """Yield the receives up to the message needed now and ``ahead`` messages more."""
        if incoming and incoming.op in self.positions:
            needed = self.positions[incoming.op] + 1
            self.num_wanted = max(self.num_wanted, needed + self.ahead)
        limit = self.num_in_warm_up if is_warm_up else len(self.queue)
        yield from self._post(min(self.num_wanted, limit))

    def post_warm_up(self) -> Iterator[Instruction]:
        """Yield the receives of the warm-up that are not posted yet."""
        yield from self._post(self.num_in_warm_up)

    def _post(self, end: int) -> Iterator[Instruction]:
        for message in self.queue[self.num_posted : end]:
            yield Instruction(Action.RECEIVE, message.op, message.sender)
        self.num_posted = max(self.num_posted, end)


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
        while action in (Action.AWAIT, Action.DISCARD) and op not in posted:
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
    may_pass = {Action.RELEASE: posted, Action.AWAIT: sent, Action.DISCARD: sent}
    if sends_block:
        may_pass[Action.SEND] = posted
    records = {Action.RECEIVE: posted, Action.SEND: sent}
    waiting: dict[tuple[Action, Op], int] = {}
    runnable = list(range(len(programs)))
    while runnable:
        rank = runnable.pop()
        for action, op, _ in _from(programs[rank].instructions, counters[rank]):
            if action in may_pass and op not in may_pass[action]:
                enabler = Action.SEND if may_pass[action] is sent else Action.RECEIVE
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
