"""Which schedules and costs do the property tests try? Hypothesis strategies, shared by all."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from zerobubble.costs import Costs
from zerobubble.ir import BW, B, F, Kind, L, O, Op, Placement, R, Schedule, W
from zerobubble.measured import MeasuredRun, MeasuredStep, Transfer
from zerobubble.schedules import REGISTRY, build
from zerobubble.simulate import Timeline

# Registered schedules that leave everything on the device.
PLAIN = [name for name in REGISTRY if not build(name, 2, 4).has_copies]


@st.composite
def placements(draw, max_ranks=4, max_stages=6):
    """Any placement: ranks in any order, holding different numbers of stages."""
    num_ranks = draw(st.integers(1, max_ranks))
    extra = draw(st.lists(st.integers(0, num_ranks - 1), max_size=max_stages - num_ranks))
    return Placement(tuple(draw(st.permutations([*range(num_ranks), *extra]))))


@st.composite
def schedules(draw, max_microbatches=4):
    """Any valid schedule of a few ranks, stages and microbatches."""
    placement = draw(placements())
    num_microbatches = draw(st.integers(1, max_microbatches))
    random = draw(st.randoms(use_true_random=False))
    share_fused = draw(st.sampled_from((0.0, 0.5, 1.0)))
    return random_schedule(random, placement, num_microbatches, share_fused)


def random_schedule(random, placement, num_microbatches, share_fused=0.5) -> Schedule:
    """Build a valid schedule: ready ops are picked at random until all have run."""
    cells = [(s, i) for s in range(placement.num_stages) for i in range(num_microbatches)]
    fused = {cell for cell in cells if random.random() < share_fused}
    waiting = {op: needs for cell in cells for op, needs in _ops_of(cell, fused, placement)}
    orders = [[] for _ in range(placement.num_ranks)]
    while waiting:
        ready = [op for op, needs in waiting.items() if not any(need in waiting for need in needs)]
        op = random.choice(ready)
        del waiting[op]
        orders[placement.stage_to_rank[op.stage]].append(op)
    return Schedule.from_ops("random", placement, num_microbatches, orders)


def _ops_of(cell, fused, placement):
    """Yield the ops of one stage and microbatch, each with the ops that it must follow."""
    stage, i = cell
    backward = {c: (BW if c in fused else B)(*c) for c in [cell, (stage + 1, i), (stage, i - 1)]}
    weight = {c: BW(*c) if c in fused else W(*c) for c in [cell, (stage, i - 1)]}
    last = stage == placement.num_stages - 1
    output = F(*cell) if last else backward[stage + 1, i]
    before = (F(stage, i - 1), backward[stage, i - 1], weight[stage, i - 1]) if i else ()
    yield F(*cell), (*before[:1], *([F(stage - 1, i)] if stage else []))
    yield backward[cell], (F(*cell), output, *before[1:2], *(before[2:] if cell in fused else ()))
    if cell not in fused:
        yield W(*cell), (B(*cell), *before[2:])


@st.composite
def schedules_with_copies(draw, max_microbatches=4):
    """Any valid schedule, some of whose microbatches are offloaded and some run again."""
    schedule = draw(schedules(max_microbatches))
    random = draw(st.randoms(use_true_random=False))
    shares = draw(st.sampled_from(((1, 0), (0, 1), (1, 1), (1, 2))))
    return with_random_copies(random, schedule, *shares)


def with_random_copies(random, schedule, offloaded=1, again=1) -> Schedule:
    """Put O, L and R at random valid places; of 1 + ``offloaded`` + ``again`` 1 has none."""
    orders = lists_of_ops(schedule)
    for order in orders:
        for op in [op for op in order if op.kind is Kind.F]:
            (way,) = random.choices(((), (O, L), (R,)), (1, offloaded, again))
            place = order.index(op) + 1
            for copy in way:
                backward = next(b for b in (B, BW) if b(*op[1:]) in order)
                place = random.randint(place, order.index(backward(*op[1:])))
                order.insert(place, copy(*op[1:]))
                place += 1
    return with_orders(schedule, orders)


times = st.integers(0, 9).map(lambda n: n / 2)


@st.composite
def costs_for(draw, num_stages):
    """Any costs: times are multiples of a half, so that sums are exact."""
    column = st.lists(times, min_size=num_stages, max_size=num_stages)
    forward, backward, weight, transfer, kept, freed = (np.array(draw(column)) for _ in range(6))
    return Costs(forward, backward, weight, transfer, kept + freed, kept)


@st.composite
def costs_of_copies_for(draw, num_stages):
    """Any costs, with those of O, L and R: sizes and times are exact in binary."""
    costs = draw(costs_for(num_stages))
    column = st.lists(times, min_size=num_stages, max_size=num_stages)
    shares = st.lists(st.integers(0, 4), min_size=num_stages, max_size=num_stages)
    offload, load, recompute = (np.array(draw(column)) for _ in range(3))
    offloaded, kept_input = (costs.activation * np.array(draw(shares)) / 4 for _ in range(2))
    engines = draw(st.sampled_from((1, 1, 2, 3)))
    return replace(
        costs,
        offload=offload,
        load=load,
        recompute=recompute,
        activation_offloaded=offloaded,
        activation_input=kept_input,
        ranks_per_engine=engines,
    )


def lists_of_ops(schedule: Schedule) -> list[list[Op]]:
    """Give the orders of all ranks as lists of ops that a test may change."""
    return [list(schedule.ops(rank)) for rank in range(schedule.num_ranks)]


def with_orders(schedule: Schedule, orders: list[list[Op]]) -> Schedule:
    """Build a schedule with other orders."""
    return Schedule.from_ops(schedule.name, schedule.placement, schedule.num_microbatches, orders)


@st.composite
def measured_runs(draw):
    """Any measured run of a few steps, its times multiples of an eighth of a millisecond."""
    schedule = draw(schedules(max_microbatches=2))
    costs = draw(st.none() | costs_for(schedule.num_stages))
    numbers = draw(st.lists(st.integers(1, 99), max_size=2, unique=True).map(sorted))
    random = draw(st.randoms(use_true_random=False))
    steps = tuple(_measured_step(random, number, schedule, costs) for number in numbers)
    return MeasuredRun(schedule, costs, steps)


def _measured_step(random, number, schedule, costs):
    def marks():
        return [
            np.cumsum([random.randrange(9) / 8 for _ in range(2 * len(order))])
            for order in schedule.orders
        ]

    device, host = marks(), marks()
    start, end, host_start, host_end = (
        tuple(each[side::2] for each in clock) for clock in (device, host) for side in (0, 1)
    )
    timeline = Timeline(schedule, costs or Costs.of_ranks(schedule.placement), start, end)
    holders = schedule.placement.stage_to_rank
    transfers = tuple(
        Transfer(F(stage, 0), *pair, random.randrange(99) / 8, 12.5, random.randrange(99))
        for stage, pair in enumerate(pairwise(holders))
        if len(set(pair)) == 2
    )
    return MeasuredStep(number, timeline, host_start, host_end, transfers)
