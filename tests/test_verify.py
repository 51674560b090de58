"""Does every rule catch what breaks it, with the right words, and nothing else?"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import lists_of_ops, schedules, with_orders
from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import BW, B, F, Kind, L, O, Schedule, W, linear
from zerobubble.verify import RULES, Subject, memory_returns_to_zero, verify, violations


def rules_broken_by(schedule, orders, **limits):
    return {v.rule for v in violations(with_orders(schedule, orders), **limits)}


def pick_op(data, orders):
    """Choose a rank that runs something and the index of one of its ops."""
    rank = data.draw(st.sampled_from([r for r, ops in enumerate(orders) if ops]))
    return rank, data.draw(st.integers(0, len(orders[rank]) - 1))


@given(schedules())
def test_a_valid_schedule_passes(schedule):
    verify(schedule)


@given(schedules(), st.data())
def test_a_dropped_op_is_caught(schedule, data):
    orders = lists_of_ops(schedule)
    rank, index = pick_op(data, orders)
    op = orders[rank].pop(index)
    (found,) = violations(with_orders(schedule, orders))
    assert (found.rule, found.rank) == ("every-op-once", rank)
    assert found.problem == f"{op} is missing"


@given(schedules(), st.data())
def test_a_doubled_op_is_caught(schedule, data):
    orders = lists_of_ops(schedule)
    rank, index = pick_op(data, orders)
    op = orders[rank][index]
    orders[rank].insert(data.draw(st.integers(0, len(orders[rank]))), op)
    (found,) = violations(with_orders(schedule, orders))
    assert (found.rule, found.rank) == ("every-op-once", rank)
    assert found.problem == f"{op} runs 2 times"


@given(schedules(), st.data())
def test_a_misplaced_op_is_caught(schedule, data):
    assume(schedule.num_ranks > 1)
    orders = lists_of_ops(schedule)
    rank, index = pick_op(data, orders)
    other = data.draw(st.sampled_from([r for r in range(schedule.num_ranks) if r != rank]))
    op = orders[rank].pop(index)
    orders[other].append(op)
    (found,) = violations(with_orders(schedule, orders))
    assert (found.rule, found.rank) == ("op-on-its-rank", other)
    assert found.problem == f"{op} is held by rank {rank}"
    assert found.fix == f"move op {len(orders[other]) - 1} to rank {rank}"


@given(schedules(), st.data())
def test_swapped_ops_are_caught_exactly_when_a_rule_breaks(schedule, data):
    orders = lists_of_ops(schedule)
    rank, i = pick_op(data, orders)
    j = data.draw(st.integers(0, len(orders[rank]) - 1))
    orders[rank][i], orders[rank][j] = orders[rank][j], orders[rank][i]
    expected = expected_rule(schedule, orders)
    assert rules_broken_by(schedule, orders) == ({expected} if expected else set())


def expected_rule(schedule, orders):
    """Judge the order of ops by hand: the first rule that it breaks."""
    place = {op: index for ops in orders for index, op in enumerate(ops)}

    def position(kinds, cell):
        return next(place[op] for kind in kinds if (op := (kind, *cell)) in place)

    cells = [(s, i) for s in range(schedule.num_stages) for i in range(schedule.num_microbatches)]
    inputs, weights = (Kind.B, Kind.BW), (Kind.W, Kind.BW)
    if any(position([Kind.F], c) > position(inputs, c) for c in cells):
        return "input-after-forward"
    if any(position(inputs, c) > position(weights, c) for c in cells):
        return "weight-after-input"
    later = [((s, i - 1), (s, i)) for s, i in cells if i]
    for kinds in ([Kind.F], inputs, weights):
        if any(position(kinds, a) > position(kinds, b) for a, b in later):
            return "microbatches-in-order"
    return None if can_finish(schedule, orders) else "no-cycle"


def can_finish(schedule, orders):
    """Run ops whose input has run until nothing moves."""
    rest, done = [list(ops) for ops in orders], set()
    while any(ops and ready(schedule, ops[0], done) for ops in rest):
        for ops in rest:
            while ops and ready(schedule, ops[0], done):
                done.add(ops.pop(0))
    return not any(rest)


def ready(schedule, op, done):
    kind, stage, i = op
    if kind is Kind.F:
        return stage == 0 or F(stage - 1, i) in done
    if kind is Kind.W:
        return B(stage, i) in done
    last = stage == schedule.num_stages - 1
    return F(stage, i) in done and (last or {B(stage + 1, i), BW(stage + 1, i)} & done)


EXAMPLES = {
    "op-on-its-rank": (
        [[F(0, 0), BW(0, 0), F(1, 0)], [BW(1, 0)]],
        "rank 0: F0 of stage 1 is held by rank 1 (rule op-on-its-rank): move op 2 to rank 1",
    ),
    "every-op-once, missing": (
        [[F(0, 0), BW(0, 0)], [F(1, 0), B(1, 0)]],
        "rank 1: W0 of stage 1 is missing (rule every-op-once): add it",
    ),
    "every-op-once, no backward": (
        [[F(0, 0), BW(0, 0)], [F(1, 0)]],
        "rank 1: BW0 of stage 1 is missing (rule every-op-once): add it",
    ),
    "every-op-once, doubled": (
        [[F(0, 0), F(0, 0), BW(0, 0)], [F(1, 0), BW(1, 0)]],
        "rank 0: F0 of stage 0 runs 2 times (rule every-op-once): delete all but one of ops 0, 1",
    ),
    "every-op-once, both ways": (
        [[F(0, 0), BW(0, 0), B(0, 0), W(0, 0)], [F(1, 0), BW(1, 0)]],
        "rank 0: stage 0 has BW0 and B or W of the same microbatch (rule every-op-once): "
        "keep BW, or B and W",
    ),
    "input-after-forward": (
        [[F(0, 0), BW(0, 0)], [BW(1, 0), F(1, 0)]],
        "rank 1: BW0 of stage 1 runs before F0 (rule input-after-forward): swap ops 0 and 1",
    ),
    "weight-after-input": (
        [[F(0, 0), BW(0, 0)], [F(1, 0), W(1, 0), B(1, 0)]],
        "rank 1: W0 of stage 1 runs before B0 (rule weight-after-input): swap ops 1 and 2",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_message_names_rank_op_rule_and_fix(name):
    orders, message = EXAMPLES[name]
    with pytest.raises(ScheduleError) as error:
        verify(Schedule.from_ops("mine", linear(2), 1, orders))
    assert str(error.value) == f"mine: {message}"


def test_microbatches_out_of_order_are_named():
    orders = [[F(0, 1), F(0, 0), BW(0, 0), BW(0, 1)]]
    with pytest.raises(ScheduleError) as error:
        verify(Schedule.from_ops("mine", linear(1), 2, orders))
    assert str(error.value) == (
        "mine: rank 0: F1 of stage 0 runs before F0 (rule microbatches-in-order): swap ops 0 and 1"
    )


def test_a_circle_is_named():
    orders = [[F(0, 0), BW(0, 0), F(0, 1), BW(0, 1)], [F(1, 0), F(1, 1), BW(1, 0), BW(1, 1)]]
    (found,) = violations(Schedule.from_ops("mine", linear(2), 2, orders))
    assert str(found) == (
        "rank 0 waits in BW0 of stage 0 for BW0 of stage 1; rank 1 waits in F1 of stage 1 for "
        "F1 of stage 0: a circle (rule no-cycle): move one of these ops earlier"
    )


def test_memory_that_is_left_over_is_named():
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), B(0, 0)]])
    costs = Costs.uniform(1, activation=4, kept=0.5)
    (found,) = memory_returns_to_zero(Subject(schedule, costs, None))
    assert str(found) == (
        "rank 0: 2 of activation memory is left after the last op "
        "(rule memory-returns-to-zero): add the missing B or W"
    )


def test_a_memory_limit_is_held_on_every_rank():
    orders = [[F(0, 0), F(0, 1), BW(0, 0), BW(0, 1)], [F(1, 0), BW(1, 0), F(1, 1), BW(1, 1)]]
    schedule = Schedule.from_ops("mine", linear(2), 2, orders)
    verify(schedule, memory=2)
    verify(schedule, memory=[2, 1])
    (found,) = violations(schedule, memory=1)
    assert str(found) == (
        "rank 0: F1 of stage 0 (op 1) raises activation memory to 2, over the limit of 1 "
        "(rule memory-limit): run a backward before it, or allow 2"
    )


@given(schedules(), st.data())
def test_the_peak_is_the_smallest_limit_that_passes(schedule, data):
    costs = Costs.of_ranks(schedule.placement, kept=0.5)
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    subject = Subject(schedule, costs, None)
    peaks = [float(subject.memory_after_each_op(r).max()) for r in range(schedule.num_ranks)]
    verify(schedule, costs, memory=peaks)
    peaks[rank] *= 0.999
    assert {v.rule for v in violations(schedule, costs, memory=peaks)} == {"memory-limit"}


def test_several_violations_are_counted():
    schedule = Schedule.from_ops("mine", linear(1), 2, [[]])
    with pytest.raises(ScheduleError, match=r"F0 of stage 0 is missing .* \(and 3 more\)$"):
        verify(schedule)


def test_costs_and_limits_must_fit():
    schedule = Schedule.from_ops("mine", linear(2), 1, [[F(0, 0), BW(0, 0)], [F(1, 0), BW(1, 0)]])
    with pytest.raises(UsageError, match="costs for 3 stages given, but mine has 2"):
        verify(schedule, Costs.uniform(3))
    with pytest.raises(UsageError, match="3 memory limits given for 2 ranks"):
        verify(schedule, memory=[1, 1, 1])


def test_every_rule_has_a_docstring():
    assert all((rule.__doc__ or "").endswith(".") for rule in RULES)


def test_what_exceeds_a_limit_may_also_be_offloaded():
    ops = [F(0, 0), O(0, 0), L(0, 0), BW(0, 0), F(0, 1), BW(0, 1)]
    schedule = Schedule.from_ops("mine", linear(1), 2, [ops])
    with pytest.raises(ScheduleError, match="run a backward or an O before it, or an L behind it"):
        verify(schedule, memory=0.5)
