"""Does the page compute what Python computes? The same schedules through both, number by number."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.strategies import random_schedule, with_random_copies
from tests.view.pretended import measured_of
from zerobubble.costs import Costs
from zerobubble.ir import Placement
from zerobubble.simulate import simulate
from zerobubble.view.facts import Facts
from zerobubble.view.html import Panel, panel_data

pytestmark = pytest.mark.timeout(120)

NUM_CASES = 50
EXACT = {
    "start": "start",
    "end": "end",
    "free": "free",
    "inputThere": "input_there",
    "loaded": "loaded",
    "memoryTimes": "memory_times",
    "waitedFor": "waited_for",
    "waitForInput": "wait_for_input",
    "waitForRank": "wait_for_rank",
    "late": "late",
    "slack": "slack",
    "spanSlack": "span_slack",
    "memoryBefore": "memory_before",
    "memoryAfter": "memory_after",
    "path": "path",
}
NUMBERS = (
    "span",
    "makespan",
    "bubble",
    "bubble_makespan",
    "peak_memory",
    "peak_memory_per_rank",
)
COMPUTE = """([cases, factors]) => cases.map((data, number) => {
  const panel = zerobubble.readPanel(data);
  zerobubble.plan(panel, factors[number]);
  return panel.runs.map(({ timeline, facts, summary }) => ({
    ...Object.fromEntries(Object.entries(facts).filter(([, value]) => value?.buffer)
      .map(([name, values]) => [name, [...values]])),
    start: [...timeline.start], end: [...timeline.end], path: facts.path,
    split: facts.split, summary, peaks: facts.peaks,
    idle: zerobubble.idleByCause(facts).map((pairs) =>
      pairs.map(([cause, time]) => [zerobubble.causeName(panel.schedule, cause), time])),
  }));
})"""


def random_costs(dice, num_stages, seed_of_copies=None):
    """Times that are not round, some of them zero."""
    times = dice.uniform(0, 2, (4, num_stages)) * (dice.random((4, num_stages)) < 0.9)
    activation = dice.uniform(0.5, 2, num_stages)
    costs = Costs(*times, activation, activation * dice.random(num_stages))
    if seed_of_copies is None:
        return costs
    more = dice.uniform(0, 2, (3, num_stages)) * (dice.random((3, num_stages)) < 0.9)
    sizes = activation * dice.random((2, num_stages))
    names = ("offload", "load", "recompute", "activation_offloaded", "activation_input")
    shared = 1 + seed_of_copies % 3
    return replace(costs, **dict(zip(names, (*more, *sizes), strict=True)), ranks_per_engine=shared)


def random_panel(seed):
    dice, rng = np.random.default_rng(seed), random.Random(seed)
    ranks = [*range(rng.randint(1, 4))]
    placement = Placement((*rng.sample(ranks, len(ranks)), *ranks[: rng.randint(0, 2)]))
    schedule = random_schedule(rng, placement, rng.randint(1, 5), rng.choice((0.0, 0.5, 1.0)))
    if has_copies := seed % 4 > 1:
        schedule = with_random_copies(rng, schedule)
    costs = random_costs(dice, placement.num_stages, seed if has_copies else None)
    limits = dice.uniform(1, 6, placement.num_ranks).tolist() if seed % 3 else None
    measured = measured_of(dice, schedule, costs) if seed % 2 else None
    return Panel(schedule, costs, limits, measured=measured)


def scaled(costs, factors):
    """What the sliders do to costs that have transfers."""
    return replace(
        costs,
        forward=costs.forward * factors["F"],
        recompute=costs.recompute * factors["F"],
        offload=costs.offload * factors["copy"],
        load=costs.load * factors["copy"],
        backward_input=costs.backward_input * factors["B"],
        backward_weight=costs.backward_weight * factors["W"],
        transfer=costs.transfer * factors["comm"],
        activation_kept=np.minimum(costs.activation_kept * factors["kept"], costs.activation),
    )


def check(found, timeline, limits, arrived=None):
    facts = Facts(timeline, None if limits is None else np.array(limits), arrived)
    for name, same in EXACT.items():
        assert found[name] == getattr(facts, same).tolist(), name
    assert found["split"] == pytest.approx(facts.split._asdict())
    assert [dict(pairs) for pairs in found["idle"]] == [
        pytest.approx(causes) for causes in facts.idle_by_cause()
    ]
    assert [[name for name, _ in pairs] for pairs in found["idle"]] == [
        [*causes] for causes in facts.idle_by_cause()
    ]
    for rank, peak in enumerate(found["peaks"]):
        expected = facts.peak_op(rank)
        assert timeline.schedule.op(int(facts.codes[peak["op"]])) == expected.op
        assert (peak["memory"], peak["start"]) == (expected.memory, expected.start)
    for name in NUMBERS:
        assert found["summary"][name] == pytest.approx(getattr(timeline, name)), name


def test_the_simulator_and_the_facts_equal_those_of_python(open_page):
    panels = [random_panel(seed) for seed in range(NUM_CASES)]
    dice = np.random.default_rng(0)
    names = ("F", "B", "W", "comm", "kept", "copy")
    factors = [dict(zip(names, dice.uniform(0.1, 2, 6).tolist(), strict=True)) for _ in panels]
    results = open_page(panels[0]).evaluate(COMPUTE, [list(map(panel_data, panels)), factors])
    for panel, factor, runs in zip(panels, factors, results, strict=True):
        planned = simulate(panel.schedule, scaled(panel.costs, factor))
        check(runs[0], planned, panel.limits)
        if panel.measured:
            check(runs[1], panel.measured.timeline, panel.limits, panel.measured.arrived)
    assert sum(len(runs) for runs in results) == NUM_CASES * 3 // 2


def test_numbers_are_written_as_python_writes_them(open_page):
    dice = np.random.default_rng(1)
    values = [0, 1, 33, 0.5, 1e-5, 123456.5, 999999.5, 1234567, 0.28125, 0.375, 2.5]
    values += [1234.125, 100000.5, 0.00012345650, 65.0005, 1.0000005]
    values += (dice.random(300) * 10.0 ** dice.integers(-7, 9, 300)).tolist()
    values += (dice.integers(0, 4096, 300) / 4096).tolist()
    found = open_page(random_panel(0)).evaluate(
        "(values) => values.map((v) => [zerobubble.general(v), zerobubble.percent(v)])", values
    )
    assert found == [[f"{value:.6g}", f"{value:.2%}"] for value in values]
