"""Do the programs of all ranks run to the end, whatever the pace of each rank?"""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import random_schedule, schedules
from zerobubble import build
from zerobubble.errors import ScheduleError
from zerobubble.graph import producers
from zerobubble.ir import BW, F, Kind, Placement, Schedule, linear
from zerobubble.lower import (
    Action,
    Instruction,
    Program,
    forward_only,
    lower,
    prove_no_deadlock,
)
from zerobubble.schedules import REGISTRY

NAMES = [*REGISTRY, "interleaved:v=3"]


class Machine:
    """Executes programs, picking the next rank at random, and checks every instruction.

    Args:
        schedule: what was lowered.
        programs: to execute.
        sends_block: whether a send waits until its receive is posted, or only its release does.
        layouts_known: otherwise a receive is posted only when it, or a later one, is awaited.
    """

    def __init__(self, schedule, programs, *, sends_block, layouts_known=True):
        self.schedule = schedule
        self.sends_block, self.layouts_known = sends_block, layouts_known
        self.rest = [list(program.instructions) for program in programs]
        self.postponed = defaultdict(list)
        self.posted, self.sent = defaultdict(list), defaultdict(list)
        self.arrived, self.handed, self.ran, self.released = set(), set(), set(), set()
        self.validated, self.reported, self.discarded = set(), [], set()

    def run(self, seed):
        pick = random.Random(seed)
        ranks = range(len(self.rest))
        while True:
            for rank in ranks:
                self.post_what_is_awaited(rank)
            ready = [rank for rank in ranks if self.can_step(rank)]
            if not ready:
                break
            self.step(pick.choice(ready))
        assert not any(self.rest), [f"{i}: {r[0]}" for i, r in enumerate(self.rest) if r]

    def can_step(self, rank):
        if not self.rest[rank]:
            return False
        action, op, peer = self.rest[rank][0]
        if action in (Action.AWAIT, Action.DISCARD):
            return op in self.sent[peer, rank]
        waits = action is Action.RELEASE or (action is Action.SEND and self.sends_block)
        return not waits or op in self.posted[rank, peer]

    def post_what_is_awaited(self, rank):
        if not self.rest[rank]:
            return
        action, op, peer = self.rest[rank][0]
        while action in (Action.AWAIT, Action.DISCARD) and op not in self.posted[peer, rank]:
            self.posted[peer, rank].append(self.postponed[peer, rank].pop(0))

    def step(self, rank):
        action, op, peer = self.rest[rank].pop(0)
        if action is Action.RECEIVE:
            waiting = self.posted if self.layouts_known else self.postponed
            assert op not in waiting[peer, rank], f"{op} is received twice"
            waiting[peer, rank].append(op)
        elif action is Action.AWAIT:
            assert op not in self.arrived
            self.arrived.add(op)
        elif action is Action.DISCARD:
            assert op not in self.arrived | self.discarded
            self.discarded.add(op)
        elif action is Action.VALIDATE:
            assert rank not in self.validated
            self.validated.add(rank)
        elif action is Action.REPORT:
            self.reported.append(rank)
            last = self.schedule.num_stages - 1
            assert {F(last, i) for i in range(self.schedule.num_microbatches)} <= self.ran
        elif action is Action.RUN:
            self.run_op(rank, op)
        elif action is Action.HAND_OVER:
            assert op in self.ran
            self.handed.add(op)
        elif action is Action.SEND:
            assert op in self.ran
            assert op not in self.sent[rank, peer], f"{op} is sent twice"
            self.sent[rank, peer].append(op)
        else:
            assert op in self.sent[rank, peer]
            assert op not in self.released, f"{op} is released twice"
            self.released.add(op)

    def run_op(self, rank, op):
        assert op not in self.ran
        need = producers(self.schedule)[self.schedule.code(op)]
        if need >= 0:
            source = self.schedule.op(need)
            if source.stage == op.stage:
                assert source in self.ran
            elif self.schedule.placement.stage_to_rank[source.stage] == rank:
                assert source in self.handed, f"{op} runs before {source} is handed over"
            else:
                assert source in self.arrived, f"{op} runs before {source} has arrived"
        self.ran.add(op)


def check(schedule, seed, **how):
    machine = Machine(schedule, lower(schedule), **how)
    machine.run(seed)
    sent = [op for messages in machine.sent.values() for op in messages]
    assert machine.ran == {op for r in range(schedule.num_ranks) for op in schedule.ops(r)}
    assert set(sent) == machine.arrived == machine.released
    assert machine.reported == [schedule.placement.stage_to_rank[-1]]
    assert len(sent) == len(set(sent))
    for pair, messages in machine.sent.items():
        assert machine.posted[pair] == messages, "received in another order than sent"


seeds = st.integers(0, 10**6)


@given(schedules(), seeds)
def test_every_message_arrives_when_sends_block(schedule, seed):
    check(schedule, seed, sends_block=True)


@given(schedules(), seeds)
def test_every_message_arrives_when_sends_are_buffered(schedule, seed):
    check(schedule, seed, sends_block=False)


@given(schedules(max_microbatches=12), seeds)
def test_every_message_arrives_while_layouts_are_unknown(schedule, seed):
    check(schedule, seed, sends_block=False, layouts_known=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stage_to_rank", [(0, 1, 1, 0), (0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2)])
def test_many_messages_under_way_arrive_while_layouts_are_unknown(stage_to_rank, seed):
    schedule = random_schedule(random.Random(seed), Placement(stage_to_rank), 16)
    check(schedule, seed, sends_block=False, layouts_known=False)


@given(schedules(), seeds)
def test_evaluation_arrives_too(schedule, seed):
    check(forward_only(schedule), seed, sends_block=True)
    check(forward_only(schedule), seed, sends_block=False, layouts_known=False)


@given(schedules())
def test_the_warm_up_is_of_forwards_that_need_only_the_warm_up(schedule):
    programs = lower(schedule)
    needs = producers(schedule)
    warm_up = [i.op for p in programs for i in p.warm_up if i.action is Action.RUN]
    assert all(op.kind is Kind.F for op in warm_up)
    needed = {needs[schedule.code(op)] for op in warm_up} - {-1}
    assert needed <= set(map(schedule.code, warm_up))
    for program in programs:
        actions = [instruction.action for instruction in program.instructions]
        assert actions.count(Action.VALIDATE) == 1
        assert actions.index(Action.VALIDATE) == len(program.warm_up)
        assert Action.REPORT not in actions[: len(program.warm_up)]


@given(schedules())
def test_with_one_stage_a_rank_the_warm_up_reaches_to_the_first_backward(schedule):
    if schedule.num_stages == schedule.num_ranks:
        for program in lower(schedule):
            ops = [op for action, op, _ in program.instructions if action is Action.RUN]
            first = next(op for op in ops if op.kind is not Kind.F)
            assert program.instructions[len(program.warm_up)] == (Action.VALIDATE, first, -1)


@given(schedules())
def test_exactly_the_messages_of_the_warm_up_are_posted_before_validation(schedule):
    programs = lower(schedule)
    sent = {i.op for p in programs for i in p.warm_up if i.action is Action.SEND}
    posted = {i.op for p in programs for i in p.warm_up if i.action is Action.RECEIVE}
    assert posted == sent


@given(schedules(max_microbatches=12), seeds, st.booleans())
def test_a_warm_up_that_is_taken_back_leaves_no_message_under_way(schedule, seed, layouts_known):
    programs = lower(schedule)
    abandoned = tuple(Program(p.rank, (*p.warm_up, *p.retreat), 0) for p in programs)
    machine = Machine(schedule, abandoned, sends_block=layouts_known, layouts_known=layouts_known)
    machine.run(seed)
    assert not machine.validated | set(machine.reported)
    for pair, messages in machine.sent.items():
        assert machine.posted[pair] == messages, "received in another order than sent"
    sent = {op for messages in machine.sent.values() for op in messages}
    assert sent == machine.released == machine.arrived | machine.discarded


@given(schedules())
def test_an_evaluation_validates_nothing(schedule):
    for program in lower(forward_only(schedule)):
        assert program.warm_up == program.retreat == ()
        assert Action.VALIDATE not in {i.action for i in program.instructions}


@given(schedules())
def test_forward_only_keeps_the_forwards_in_order(schedule):
    kept = forward_only(schedule)
    assert kept.placement == schedule.placement
    for rank in range(schedule.num_ranks):
        forwards = [op for op in schedule.ops(rank) if op.kind is Kind.F]
        assert list(kept.ops(rank)) == forwards


def most_live_buffers(program):
    """Count received messages until their reader has run, and sent ones until their release."""
    live, most = set(), 0
    awaited = None
    for action, op, peer in program.instructions:
        if action in (Action.RECEIVE, Action.SEND):
            live.add((op, peer))
        elif action is Action.AWAIT:
            awaited = (op, peer)
        elif action is Action.RUN:
            live.discard(awaited)
        elif action is Action.RELEASE:
            live.remove((op, peer))
        most = max(most, len(live))
    assert not live
    return most


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "breadth-first"])
def test_live_buffers_do_not_grow_with_microbatches(name, num_ranks):
    few, many = (build(name, num_ranks, num_ranks * k) for k in (6, 24))
    count = [[most_live_buffers(program) for program in lower(s)] for s in (few, many)]
    assert count[0] == count[1]
    assert max(count[0]) > 0


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_named_schedules_look_few_messages_ahead(name, num_ranks):
    schedule = build(name, num_ranks, 2 * num_ranks)
    programs = lower(schedule)
    [ahead] = {program.num_receives_ahead for program in programs}
    assert ahead in ((1,) if schedule.num_stages == num_ranks or num_ranks == 1 else (1, 2, 4))
    assert [program.rank for program in programs] == list(range(num_ranks))
    check(schedule, seed=0, sends_block=True)


def test_breadth_first_needs_a_buffer_for_every_microbatch():
    """A stage sends all its microbatches before the next stage of the receiving rank begins."""
    counts = [
        max(most_live_buffers(program) for program in lower(build("breadth-first", 4, m)))
        for m in (8, 16)
    ]
    assert counts[0] < counts[1]


def exchange(*, send_first):
    """Two ranks send to each other; one of them, or both, post the receive after their send."""
    programs = []
    for rank, sends_first in enumerate(send_first):
        mine, theirs = F(rank, 0), F(1 - rank, 0)
        send = Instruction(Action.SEND, mine, 1 - rank)
        receive = Instruction(Action.RECEIVE, theirs, 1 - rank)
        both = [send, receive] if sends_first else [receive, send]
        await_ = Instruction(Action.AWAIT, theirs, 1 - rank)
        programs.append(Program(rank, (Instruction(Action.RUN, mine), *both, await_), 0))
    return tuple(programs)


def test_receives_posted_after_blocking_sends_are_refused():
    with pytest.raises(ScheduleError) as raised:
        prove_no_deadlock(exchange(send_first=(True, True)))
    assert str(raised.value) == (
        "deadlock: rank 0 stops at SEND F0 of stage 0 to rank 1; "
        "rank 1 stops at SEND F0 of stage 1 to rank 0: post receives earlier"
    )


@pytest.mark.parametrize("send_first", [(True, False), (False, True), (False, False)])
def test_one_early_receive_breaks_the_circle(send_first):
    prove_no_deadlock(exchange(send_first=send_first))


def test_a_circle_of_ops_cannot_be_lowered():
    orders = [[BW(0, 0), F(0, 0)], [F(1, 0), BW(1, 0)]]
    circle = Schedule.from_ops("circle", linear(2), 1, orders)
    with pytest.raises(ScheduleError, match="rank 0 waits in BW0 of stage 0 for BW0 of stage 1"):
        lower(circle)
