"""May a plan count on offload and recompute to fit into the memory?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.profiles import profile_of, profiles
from zerobubble.errors import UsageError
from zerobubble.ir import Kind, linear
from zerobubble.plan import make_plan
from zerobubble.plan.file import dumps, loads
from zerobubble.profile import Link, stage_costs
from zerobubble.profile.file import dumps as dumps_profile
from zerobubble.profile.file import loads as loads_profile
from zerobubble.simulate import simulate
from zerobubble.verify import verify

CHOICES = ({"offload": "auto"}, {"recompute": "auto"}, {"offload": "auto", "recompute": "auto"})
# Eight blocks that hold 100 bytes of activations for a microbatch, 20 of them their input, on two
# ranks whose weights take 1600.
EIGHT = profile_of([1.0] * 8, host=Link(0.0, 1000.0))


def needed(profile, ranks, batch, **options):
    """Bytes of the rank that needs most."""
    return max(make_plan(profile, ranks, batch, **options).forecast.peak_bytes)


@pytest.mark.parametrize("relief", CHOICES)
def test_what_does_not_fit_otherwise(relief):
    """Four stages a rank hold one microbatch in 400 bytes; moved, all but one leave 20 each."""
    limit = 1600 + 250
    options = {"placements": "looped:4", "batch_size": 8, "num_ranks": 2}
    with pytest.raises(UsageError, match="nothing fits into the memory"):
        make_plan(EIGHT, memory=limit, **options)
    plan = make_plan(EIGHT, memory=limit, **options, **relief)
    verify(plan.schedule, plan.costs, np.array(plan.memory_bytes) - plan.forecast.weight_bytes)
    assert max(plan.forecast.peak_bytes) <= limit
    assert simulate(plan.schedule, plan.costs).peak_memory_per_rank == list(
        plan.forecast.activation_bytes
    )
    assert any(plan.schedule.has(kind).any() for kind in (Kind.O, Kind.R))
    assert dumps(loads(dumps(plan), "plan.json")) == dumps(plan)


@given(profiles(most_layers=6), st.integers(1, 2), st.floats(0.5, 1), st.sampled_from(CHOICES))
@settings(max_examples=6, deadline=None)
def test_relief_is_never_worse(profile, ranks, share, relief):
    if ranks > profile.num_layers:
        return
    limit = share * needed(profile, ranks, 4) or 1.0
    try:
        without = make_plan(profile, ranks, 4, limit)
    except UsageError:
        return
    plan = make_plan(profile, ranks, 4, limit, **relief)
    assert plan.forecast.step_ms <= without.forecast.step_ms * (1 + 1e-9)
    assert plan.forecast.bound_ms <= plan.forecast.step_ms * (1 + 1e-9)


def test_copies_take_the_link_to_the_host():
    costs = stage_costs(EIGHT, 1, [range(0, 2), range(2, 8)], linear(2))
    assert costs.activation.tolist() == [200, 600]
    assert costs.activation_input.tolist() == [20, 20]
    assert costs.offload.tolist() == [0.18, 0.58]
    assert costs.recompute.tolist() == [2, 6]


def test_an_older_profile_has_no_link_to_the_host():
    values = json.loads(dumps_profile(EIGHT))
    del values["host"]
    assert loads_profile(json.dumps(values), "p.json") == replace(EIGHT, host=Link())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"offload": "some"}, "offload must be one of off, auto, all, not 'some'"),
        ({"recompute": "light"}, "recompute must be one of off, auto, full, not 'light'"),
        ({"recompute": None}, "recompute must be one of off, auto, full"),
    ],
)
def test_bad_choices(asked, message):
    with pytest.raises(UsageError, match=message):
        make_plan(EIGHT, 2, 8, **asked)
