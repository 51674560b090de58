"""Is ``zb-auto`` what the search finds within its memory, and registered as any other?"""

import subprocess
import sys

import pytest

from tests.strategies import PLAIN
from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import looped, wave
from zerobubble.schedules import REGISTRY, build, recipe
from zerobubble.search import search
from zerobubble.search.auto import AUTO
from zerobubble.search.limits import smallest_memory
from zerobubble.simulate import simulate
from zerobubble.verify import verify, violations

TIMES = (18.522, 18.086, 9.337, 0.601, 0.366)


@pytest.mark.parametrize(
    ("v", "placement"), [(1, "linear"), (2, "v"), (3, "looped:3"), (4, "wave:4"), (6, "wave:6")]
)
def test_an_even_number_of_stages_is_a_wave(v, placement):
    assert str(build(f"zb-auto:v={v}", 3, 2).placement) == placement
    assert recipe(AUTO).parameters == {"v": 2, "memory": None}


@pytest.mark.parametrize(("v", "memory"), [(1, 2), (1, 4), (2, 3), (3, 4)])
def test_it_is_what_the_search_finds(v, memory):
    place = recipe(AUTO).place(4, v=v)
    costs = Costs.of_ranks(place, *TIMES)
    built = build(f"zb-auto:v={v},memory={memory}", 4, 6, costs)
    found = search(costs, 4, 6, memory, place, effort="quick")
    assert built == found.schedule.renamed(f"zb-auto:v={v},memory={memory}")
    verify(built, costs, memory)


def test_without_a_limit_it_has_the_memory_of_1f1b():
    schedule = build(AUTO, 4, 8)
    assert schedule == build("zb-auto:memory=4", 4, 8).renamed(AUTO)
    timeline = simulate(schedule, Costs.of_ranks(wave(4, 2)))
    assert (timeline.span, timeline.peak_memory) == (24, 4)


def test_memory_counts_microbatches_on_each_rank():
    """Ranks whose activations differ in size are limited by their own."""
    costs = Costs(*([1, 1, 1, 1] for _ in range(3)), [0] * 4, [1, 2, 30, 4], [1, 1, 1, 1])
    limits = 2 * smallest_memory(costs, looped(4, 1))
    assert limits.tolist() == [2, 4, 60, 8]
    verify(build("zb-auto:v=1,memory=2", 4, 6, costs), costs, limits)
    assert violations(build("zb-auto:v=1,memory=3", 4, 6, costs), costs, limits)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_it_is_never_worse_than_a_named_schedule_that_fits(p):
    for name, known in REGISTRY.items():
        costs = Costs.of_ranks(known.place(p), *TIMES)
        other = known.build(p, 2 * p, costs)
        if name == AUTO or name not in PLAIN or violations(other, costs, p):
            continue
        if known.place(p) == recipe(AUTO).place(p, v=costs.num_stages // p):
            auto = build(f"zb-auto:v={costs.num_stages // p}", p, 2 * p, costs)
            assert simulate(auto, costs).span <= simulate(other, costs).span * (1 + 1e-9)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zb-auto:memory=0", "zb-auto: memory must be at least 1, not 0"),
        ("zb-auto:v=0", "zb-auto: v must be at least 1, not 0"),
        ("zb-auto:memory=1.5", "write parameters as zb-auto:v=2, not 'memory=1.5'"),
    ],
)
def test_memory_for_less_than_one_microbatch_is_refused(spec, message):
    with pytest.raises(UsageError, match=message):
        build(spec, 4, 8)


def test_one_microbatch_at_a_time_is_possible():
    costs = Costs.of_ranks(wave(3, 2))
    alone = simulate(build("zb-auto:memory=1", 3, 4), costs)
    assert alone.peak_memory == 1


def test_registering_it_loads_no_search():
    code = (
        "import sys, zerobubble as zb\n"
        "assert 'zb-auto' in zb.schedules.REGISTRY\n"
        "assert not {'zerobubble.search.engine', 'zerobubble.search.sweep'} & set(sys.modules)\n"
        "zb.build('zb-auto', 2, 2)\n"
        "assert not {'torch', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
