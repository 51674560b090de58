"""Do the reasons of a plan name what holds it up, and what would help?"""

import re
from dataclasses import replace

from tests.plan.profiles import profile_of
from zerobubble.plan import make_plan
from zerobubble.plan.reasons import GIB, _distance


def test_the_bottleneck_is_named_with_its_layers_and_how_much_it_is_above_the_mean():
    plan = make_plan(profile_of([1, 1, 1, 5]), 2, 8, placements="linear")
    assert plan.reasons[0] == "rank 1 is the bottleneck: block 3; 1.25 x the mean"


def test_a_plan_that_is_proved_says_what_binds():
    plan = make_plan(profile_of([1, 1]), 2, 8, placements="linear")
    assert plan.reasons == (
        "work is even: rank 0 has most, 1.000 x the mean",
        "no schedule of these stages has a shorter step: rank 0, load, limited by its work",
    )


def test_other_placements_and_microbatch_sizes_are_compared():
    profile = profile_of([1] * 8, sizes=(1, 2), step_overhead_ms=1)
    plan = make_plan(profile, 2, 4, 3600.0)
    text = "\n".join(plan.reasons)
    assert re.search(r"placement \S+: the next best, \S+, has a step of [0-9.]+ ms, ", text)
    assert re.search(r"microbatch size 1: with 2 a step takes [0-9.]+ ms, [0-9.]+% longer", text)


def test_the_next_gib_is_worth_what_a_plan_with_it_gains():
    scale = GIB / 100
    profile = profile_of([1] * 4)
    big = {
        size: tuple(_scaled(layer, scale) for layer in layers)
        for size, layers in profile.layers.items()
    }
    profile = type(profile)(profile.model, "d", profile.layer_names, big)
    few = make_plan(profile, 2, 8, 10.2 * GIB, placements="linear")
    more = make_plan(profile, 2, 8, 11.2 * GIB, placements="linear")
    gain = 1 - more.forecast.step_ms / few.forecast.step_ms
    assert gain > 0
    assert few.reasons[-1] == f"1 GiB more a rank: step {gain:.1%} shorter"
    ample = make_plan(profile, 2, 8, 100 * GIB, placements="linear")
    assert ample.reasons[-1] == "1 GiB more a rank would buy nothing"


def test_a_distance_of_almost_nothing_is_no_sum_of_two_bounds():
    forecast = make_plan(profile_of([1, 1]), 2, 8, placements="linear").forecast
    near = replace(forecast, step_ms=100.01, bound_ms=100.0)
    assert _distance(near).startswith("less than 0.05% above the shortest step of these stages")
    assert _distance(replace(near, step_ms=101.0)).startswith("at most 1.0% above the shortest")


def _scaled(layer, factor):
    values = {
        name: value * factor if name.endswith("_bytes") else value
        for name, value in vars(layer).items()
    }
    return type(layer)(**values)
