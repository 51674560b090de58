"""Do the schedules have the bubble and the memory that their formulas promise?

The bubble time is the span less the work of a rank, m(F+B+W). Equal times are tried for all
numbers of microbatches, other times for those where a formula could change.
"""

import functools

import pytest

from zerobubble.costs import Costs
from zerobubble.schedules import build
from zerobubble.simulate import simulate

UNIT = (1, 1, 1)
UNEQUAL = ((3, 4, 2), (10, 11, 9))
RANKS = range(2, 17)

built = functools.cache(build)


def sizes(num_ranks):
    """Yield times and numbers of microbatches from p to 4p."""
    p = num_ranks
    yield from ((UNIT, m) for m in range(p, 4 * p + 1))
    yield from ((times, m) for times in UNEQUAL for m in {p, p + 1, 2 * p - 1, 2 * p, 4 * p})


def measure(name, num_ranks, num_microbatches, times, transfer=0):
    """Simulate, and return the bubble time and the peak memory."""
    f, b, w = times
    schedule = built(name, num_ranks, num_microbatches)
    costs = Costs.of_ranks(schedule.placement, f, b, w, transfer)
    timeline = simulate(schedule, costs)
    return timeline.span - num_microbatches * (f + b + w), timeline.peak_memory


@pytest.mark.parametrize("p", RANKS)
def test_gpipe(p):
    for (f, b, w), m in sizes(p):
        assert measure("gpipe", p, m, (f, b, w)) == ((p - 1) * (f + b + w), m)


@pytest.mark.parametrize("p", RANKS)
def test_1f1b(p):
    for (f, b, w), m in sizes(p):
        assert measure("1f1b", p, m, (f, b, w)) == ((p - 1) * (f + b + w), p)


@pytest.mark.parametrize("p", RANKS)
def test_zb_h1(p):
    for (f, b, w), m in sizes(p):
        assert measure("zb-h1", p, m, (f, b, w)) == ((p - 1) * (f + b - w), p)


@pytest.mark.parametrize("p", RANKS)
def test_zb_h2(p):
    """With fewer than 2p-1 microbatches no schedule can fill the warm-up."""
    for (f, b, w), m in sizes(p):
        missing = max(0, 2 * p - 1 - m)
        bubble = (p - 1) * (f + b - 2 * w) + missing * w
        assert measure("zb-h2", p, m, (f, b, w)) == (bubble, min(2 * p - 1, m))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(("times", "transfer"), [(UNIT, 1), ((3, 4, 2), 1), ((10, 11, 9), 2)])
def test_zb_h2_with_transfers(p, times, transfer):
    f, b, w = times
    for m in (2 * p - 1, 2 * p, 3 * p):
        bubble, _ = measure("zb-h2", p, m, times, transfer)
        assert bubble == (p - 1) * (f + b + 2 * transfer - 2 * w)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved(p, v):
    for times in (UNIT, *UNEQUAL):
        for m in range(p, 4 * p + 1, p):
            bubble, memory = measure(f"interleaved:v={v}", p, m, times)
            assert bubble == pytest.approx((p - 1) * sum(times) / v)
            assert memory == pytest.approx(p if m == p else p * (1 + (p - 1) / (p * v)))
