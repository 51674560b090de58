"""Do GIS, GIS-H, PO-H and PO-F need the memory and the time that PipeOffload publishes?

Source: arXiv 2503.01328, table 1 and section 3. Memory is in microbatches of a rank: M is p, and
copies take no time in the formulas.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from zerobubble.copies import with_copies, without_copies
from zerobubble.costs import Costs
from zerobubble.ir import Kind
from zerobubble.schedules import build, recipe
from zerobubble.schedules.registry import parse_spec
from zerobubble.simulate import simulate
from zerobubble.verify import verify

RANKS = range(2, 9)
STAGES = (2, 3, 4, 5, 8, 16)


@cache
def run(spec, p, m, k=0.0):
    """Simulate at equal times; ``k`` is the time of both copies over that of the compute."""
    name, parameters = parse_spec(spec)
    costs = Costs.of_ranks(recipe(name).place(p, **parameters))
    one_way = k / 2 * (costs.forward + costs.backward_input + costs.backward_weight)
    costs = replace(costs, offload=one_way, load=one_way)
    schedule = build(spec, p, m, costs)
    verify(schedule, costs)
    return simulate(schedule, costs)


def memory(spec, p, m=None, k=0.0):
    return run(spec, p, m or 4 * p, k).peak_memory


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", STAGES)
def test_gis_needs_the_memory_of_1f1b(p, v):
    assert memory(f"gis:v={v}", p) == pytest.approx(p)
    bubble = run(f"gis:v={v}", p, 4 * p).span - 3 * 4 * p
    assert bubble == pytest.approx((p - 1) / v)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", STAGES)
def test_gis_h_needs_half_of_it_and_one_stage(p, v):
    half = p * (v + 1) / (2 * v) if p % 2 == 0 else ((p + 1) / 2 * (v - 1) + p) / v
    assert memory(f"gis-h:v={v}", p) == pytest.approx(half)


@pytest.mark.parametrize("v", [2, 3])
def test_the_names_are_those_of_grouped_interleaved(v):
    for name, g in (("gis", 5), ("gis-h", 3)):
        grouped = build(f"grouped-interleaved:g={g},v={v}", 5, 12)
        assert build(f"{name}:v={v}", 5, 12) == grouped.renamed(f"{name}:v={v}")


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", STAGES)
def test_po_h_needs_a_quarter_of_that(p, v):
    """The average is (v+2)/(8v) M for even p and v, and the peak at most two stages above it.

    Two ranks alone send one microbatch at a time through all stages, so what stays comes at once.
    """
    stay, group = v // 2, (p + 1) // 2
    average = (p * stay + group * stay * (stay - 1)) / v
    if p % 2 == 0 and v % 2 == 0:
        assert average / v == pytest.approx(p * (v + 2) / (8 * v))
    held = memory(f"po-h:v={v}", p) * v
    if p == 2:
        assert held == pytest.approx(stay + 1)
    else:
        assert average < held + 1e-9 <= average + 2 + 1e-6


def test_half_of_the_stages_offloaded_leave_about_a_quarter():
    assert 0.25 <= memory("po-h:v=16", 8) / memory("gis-h:v=16", 8) <= 0.28
    assert memory("po-h:v=16", 8) / memory("interleaved:v=16", 8) <= 0.145


@pytest.mark.parametrize("p", RANKS)
def test_po_h_with_four_stages_is_below_the_target(p):
    assert memory("po-h:v=4", p) <= 0.45 * memory("interleaved:v=4", p)
    assert memory("po-h:v=4", p, k=0.8) <= 0.45 * memory("interleaved:v=4", p)


@pytest.mark.parametrize("v", [2, 4, 8])
@pytest.mark.parametrize("p", [2, 3, 4, 8, 16])
def test_po_f_holds_one_stage_if_copies_take_no_time(p, v):
    assert memory(f"po-f:v={v}", p) * v == pytest.approx(1)


@pytest.mark.parametrize("v", [4, 8])
def test_po_f_holds_about_four_stages_at_any_number_of_ranks(v):
    held = [memory(f"po-f:v={v}", p, k=1.0) * v for p in (2, 4, 8, 16)]
    assert max(held) <= 4 + 1e-9, held
    assert max(held) - min(held) <= 1 + 1e-9, held


@pytest.mark.parametrize("name", ["po-h", "po-f"])
@pytest.mark.parametrize("p", RANKS)
def test_hidden_copies_take_no_time(name, p):
    for k in (0.5, 1.0, 1.5):
        timeline = run(f"{name}:v=4", p, 2 * p + 1, k)
        plain = simulate(without_copies(timeline.schedule), timeline.costs)
        assert timeline.span == pytest.approx(plain.span)


@pytest.mark.parametrize("name", ["po-h", "po-f"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [2.0, 6.0])
def test_copies_as_long_as_the_compute_give_schedules(name, p, k):
    """Where the reference fails: one way as long as F, B and W, all stages, an odd number of ranks.

    What cannot move in time stays, so the time is that without copies.
    """
    for m in (1, p, 3 * p):
        timeline = run(f"{name}:v=3", p, m, k)
        plain = simulate(without_copies(timeline.schedule), timeline.costs)
        assert timeline.span == pytest.approx(plain.span)
        assert timeline.peak_memory <= plain.peak_memory


def test_late_forwards_save_memory_at_no_time():
    """The plan of the copies alone holds 9 stages, since the warm-up runs ahead of its copies."""
    timeline = run("po-f:v=8", 8, 32, 1.5)
    eager = simulate(with_copies(without_copies(timeline.schedule), timeline.costs), timeline.costs)
    assert eager.peak_memory * 8 == pytest.approx(9)
    assert timeline.peak_memory * 8 == pytest.approx(6)
    assert timeline.span == pytest.approx(eager.span)


def test_po_h_moves_the_longest_lived_stages():
    timeline = run("po-h:v=5", 3, 12)
    moved = timeline.schedule.has(Kind.O).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [*range(9)]
