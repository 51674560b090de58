"""Do the bounds have the values that are known, and do the optimal schedules reach them?"""

import json
from pathlib import Path

import numpy as np
import pytest

from zerobubble.costs import Costs
from zerobubble.ir import linear, looped, wave
from zerobubble.schedules import build
from zerobubble.search.bounds import lower_bound, lower_bounds
from zerobubble.simulate import simulate

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "known_bounds.json").read_text())
PAPER = json.loads((HERE.parent / "data" / "zero_bubble_paper.json").read_text())["rows"]
PLACEMENTS = {
    "linear": linear,
    "v": lambda p: wave(p, 2),
    "wave:4": lambda p: wave(p, 4),
    "looped:4": lambda p: looped(p, 4),
}
COSTS = {(row["table"], row["model"], row["m"]): row["costs"] for row in PAPER}
TABLE5 = [row for row in PAPER if row["table"] == "table5"]


def name_of(row):
    return "-".join(
        str(row[key]) for key in ("model", "placement", "p", "m", "memory") if key in row
    )


def least_bubble(row, placement, memory, objective="span"):
    """Turn the bound for a row of costs into a share of the span."""
    times = COSTS.get((row["table"], row["model"], row["m"]), (1, 1, 1, 0))
    costs = Costs.of_ranks(placement, *times, kept=KNOWN["kept"][row["model"]])
    bound = lower_bound(costs, placement, row["m"], memory, objective)
    return 1 - row["m"] * sum(times[:3]) / bound.value


@pytest.mark.parametrize("row", KNOWN["rows"], ids=name_of)
def test_known_bubbles(row):
    placement = PLACEMENTS[row["placement"]](row["p"])
    for objective in ("span", "makespan"):
        if objective in row:
            bubble = least_bubble(row, placement, row["memory"], objective)
            assert f"{bubble:.4f}" == f"{row[objective]:.4f}"


@pytest.mark.parametrize("row", TABLE5, ids=name_of)
def test_zb_h1_is_optimal_in_its_memory(row):
    """Its span is the bound, on the costs that the paper measured."""
    schedule = build("zb-h1", row["p"], row["m"])
    costs = Costs.of_ranks(schedule.placement, *row["costs"], kept=KNOWN["kept"][row["model"]])
    bound = lower_bound(costs, schedule.placement, row["m"], row["p"])
    assert simulate(schedule, costs).span == pytest.approx(bound.value, rel=1e-9)
    assert bound.cause == "memory"


@pytest.mark.parametrize("objective", ["span", "makespan"])
@pytest.mark.parametrize("p", [1, 2, 3, 8, 17])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (3, 4, 2), (10, 11, 9)])
def test_zb_h1_is_optimal_at_equal_transfers(p, f, b, w, objective):
    """Without transfers its idle time is the bound: (p-1)(F+B-W) for any m > p."""
    for m in (p + 1, 2 * p, 3 * p + 1):
        schedule = build("zb-h1", p, m)
        costs = Costs.of_ranks(schedule.placement, f, b, w)
        bound = lower_bound(costs, schedule.placement, m, p, objective)
        assert bound.value == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w), rel=1e-12)
        assert getattr(simulate(schedule, costs), objective) == pytest.approx(bound.value)


@pytest.mark.parametrize(("f", "b", "w", "c"), [(1, 1, 1, 0), (4, 4, 3, 1), (8, 8, 5, 0.5)])
@pytest.mark.parametrize("p", [2, 4, 8, 16, 64])
def test_linear_within_p_microbatches(p, f, b, w, c):
    """The idle time is no less than (p-1)(F+B-W+4c), c being the transfer."""
    for m in (p + 1, 3 * p):
        costs = Costs.of_ranks(linear(p), f, b, w, c)
        idle = lower_bound(costs, linear(p), m, p).value - m * (f + b + w)
        assert idle == pytest.approx((p - 1) * (f + b - w + 4 * c), rel=1e-9)


@pytest.mark.parametrize(("f", "b", "w", "c"), [(1, 1, 1, 0.25), (4, 4, 3, 1), (8, 8, 5, 0.5)])
@pytest.mark.parametrize("kept", [0.5, 1])
@pytest.mark.parametrize("p", [3, 4, 8, 16])
def test_v_within_p_microbatches(p, f, b, w, c, kept):
    """The idle time is no less than (p-1)(f+b+6c) - (2p-1)w, f, b and w being those of a stage."""
    m, placement = 3 * p, wave(p, 2)
    costs = Costs.uniform(2 * p, f=f, b=b, w=w, transfer=c, activation=0.5, kept=kept)
    expected = (p - 1) * (f + b + 6 * c) - (2 * p - 1) * w
    bound = lower_bound(costs, placement, m, p)
    assert bound.value - 2 * m * (f + b + w) == pytest.approx(max(0, expected))
    if expected > 0:
        assert bound.reason == f"ranks 0 and {p - 1}, turn, limited by memory"


@pytest.mark.parametrize(("f", "b", "w", "c"), [(1, 1, 1, 0.25), (4, 4, 3, 1), (8, 8, 5, 0.5)])
@pytest.mark.parametrize("p", [4, 8, 16])
def test_v_turns_at_the_last_rank(p, f, b, w, c):
    """One more activation saves the time of one stage: (3p-1)(f+b) + 6(p-1)c + w - L(f+b+w)."""
    m, placement = 3 * p, wave(p, 2)
    costs = Costs.uniform(2 * p, f=f, b=b, w=w, transfer=c)
    for memory in range(p + 2, 2 * p + 1):
        idle = (3 * p - 1) * (f + b) + 6 * (p - 1) * c + w - memory * (f + b + w)
        turn = largest(lower_bounds(costs, placement, m, memory), "turn")
        assert turn.value - 2 * m * (f + b + w) == pytest.approx(idle)
        assert (turn.rank, turn.other) == (0, p - 1)


def largest(bounds, name):
    return next(bound for bound in bounds if bound.name == name)


@pytest.mark.parametrize("row", TABLE5, ids=name_of)
def test_no_published_bubble_is_below_its_bound(row):
    published = row["bubble"]
    within_p, within_2p = (least_bubble(row, linear(row["p"]), n * row["p"]) for n in (1, 2))
    assert published["ZB-H1"] >= within_p - 5e-5
    assert published["ZB-H2"] >= within_2p - 5e-5
    assert within_p > within_2p


def test_memory_for_zero_bubble_is_a_third_of_p():
    """V-Min (arXiv 2405.15362) peaks at about p/3 at equal times: much less forces waiting."""
    p, m = 30, 3000
    costs = Costs.of_ranks(wave(p, 2), kept=0)
    work = 3 * m
    assert lower_bound(costs, wave(p, 2), m, p / 3 + 1).value < 1.01 * work
    area = p / 2 + 1 / 4
    for memory in (5, 8):
        least = lower_bound(costs, wave(p, 2), m, memory)
        assert least.value >= work * (2 * area / 3) / memory
        assert least.reason == "rank 0, memory-area, limited by memory"
    assert np.isclose(lower_bound(costs, wave(p, 2), m).value, work)
