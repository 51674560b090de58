"""What does a rank need to run a schedule? Its programs, bound to the stages and to messages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from zerobubble.ir import Kind, Schedule
from zerobubble.lower import Action, Program, forward_only, lower
from zerobubble.runtime.announcement import Announcements
from zerobubble.runtime.executor import Executor, Owner
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.messages import Layouts, Messages
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.trace import Recorder
from zerobubble.runtime.transport import Transport


class Running:
    """All of one rank that depends on the schedule; every rank builds it together.

    Args:
        schedule: that runs.
        programs: of all ranks, for it.
        stages: of this rank.
        chain: the ranks in the order of their first stages.
        transport: the connections of this rank.
        ledger: watches the memory of the rank.
        recorder: notes the times of the ops.
        owner: what the executors call.

    Attributes:
        training: runs a step.
        evaluation: runs the forwards alone.
        announcements: take every batch.
        messages: of the step.
        layouts: what the stages' outputs look like, for each purpose and signature of a batch.
    """

    def __init__(
        self,
        schedule: Schedule,
        programs: Sequence[Program],
        stages: Mapping[int, Stage],
        chain: Sequence[int],
        transport: Transport,
        ledger: Ledger,
        recorder: Recorder,
        owner: Owner,
    ) -> None:
        self.schedule = schedule
        split, offloaded, repeated = schedule.split_stages(), *map(schedule.has, (Kind.O, Kind.R))
        for number, stage in stages.items():
            stage.splits_backward = number in split
            stage.offloaded = frozenset(np.flatnonzero(offloaded[number]).tolist())
            stage.repeated = frozenset(np.flatnonzero(repeated[number]).tolist())
        self.announcements = Announcements(schedule, stages, chain, transport)
        self.messages = Messages(schedule, stages, transport, ledger)
        bind = partial(Executor, owner=owner, stages=stages, messages=self.messages)
        self.training = bind(programs[transport.rank], recorder=recorder)
        self.evaluation = bind(lower(forward_only(schedule))[transport.rank])
        self.layouts: defaultdict[tuple[str, int], Layouts] = defaultdict(Layouts)


def pairs(programs: Sequence[Program]) -> set[tuple[int, int]]:
    """List the (sender, reader) pairs between which messages travel."""
    return {
        (program.rank, instruction.peer)
        for program in programs
        for instruction in program.instructions
        if instruction.action is Action.SEND
    }
