"""Is a plan what it claims: within memory, deterministic, and no worse than what is known?"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan import balanced_ms
from benchmarks.plan_models import NUM_MODELS, draw_case
from tests.plan.profiles import profile_of, profiles
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.plan import make_plan
from zerobubble.plan.cuts import layers_of_stages
from zerobubble.plan.file import dumps
from zerobubble.plan.forecast import costs_of, forecast
from zerobubble.plan.partition import partition
from zerobubble.profile import stage_costs
from zerobubble.search.known import known_schedules
from zerobubble.simulate import simulate
from zerobubble.verify import verify


def is_no_more(value, other):
    return value <= other * (1 + 1e-9)


@given(profiles(), st.integers(1, 3), st.sampled_from([4, 6]), st.floats(0, 1), st.booleans())
@settings(max_examples=8, deadline=None)
def test_a_plan_is_whole_within_memory_and_always_the_same(profile, ranks, batch, share, is_post):
    if ranks > profile.num_layers:
        return
    validate = "post" if is_post else "sync"
    roomy = make_plan(profile, ranks, batch, validate=validate)
    limit = max(roomy.forecast.peak_bytes) * (0.4 + 0.6 * share) or 1.0
    try:
        plan = make_plan(profile, ranks, batch, limit, validate=validate)
    except UsageError:
        return
    assert sum(plan.layers_per_stage) == profile.num_layers
    assert plan.batch_size == batch
    verify(plan.schedule)
    costs = costs_of(profile, plan.microbatch_size, plan.layers_per_stage, plan.schedule)
    assert costs.to_dict() == plan.costs.to_dict()
    peaks = simulate(plan.schedule, costs).peak_memory_per_rank
    assert peaks == list(plan.forecast.activation_bytes)
    assert all(is_no_more(peak, limit) for peak in plan.forecast.peak_bytes)
    assert dumps(make_plan(profile, ranks, batch, limit, validate=validate)) == dumps(plan)


@given(profiles(most_layers=8), st.integers(1, 2), st.booleans())
@settings(max_examples=8, deadline=None)
def test_no_registered_schedule_is_better_with_the_balanced_partition(profile, ranks, is_post):
    if ranks > profile.num_layers:
        return
    validate, batch = ("post" if is_post else "sync"), 4
    plan = make_plan(profile, ranks, batch, validate=validate)
    place, size = plan.schedule.placement, plan.microbatch_size
    weights = [layer.compute_ms for layer in profile.at(size)]
    lengths = partition(weights, place.num_stages).layers_per_stage
    costs = stage_costs(profile, size, layers_of_stages(lengths), place)
    for build in known_schedules(place).values():
        try:
            schedule = build(ranks, batch // size, costs)
        except ScheduleError:
            continue
        known = forecast(profile, size, lengths, schedule, validate)
        assert is_no_more(plan.forecast.step_ms, known.step_ms), schedule.name


@pytest.mark.parametrize("seed", range(NUM_MODELS))
def test_joint_search_is_never_worse_than_the_balanced_partition(seed):
    case = draw_case(seed)
    plan = make_plan(case.profile, case.num_ranks, case.num_microbatches, case.memory)
    assert is_no_more(plan.forecast.step_ms, balanced_ms(case, plan.schedule.placement))
    assert all(is_no_more(peak, case.memory) for peak in plan.forecast.peak_bytes)


def test_layers_move_where_that_leaves_more_memory_for_what_waits():
    case = draw_case(1)
    plan = make_plan(case.profile, case.num_ranks, case.num_microbatches, case.memory)
    assert plan.forecast.step_ms < 0.95 * balanced_ms(case, plan.schedule.placement)
    assert any("layers moved from the balanced partition" in reason for reason in plan.reasons)


def test_the_schedule_asked_for_is_planned_with_its_placement():
    profile = profile_of([1] * 8)
    plan = make_plan(profile, 2, 8, schedule="interleaved:v=2")
    assert (plan.schedule.name, str(plan.schedule.placement)) == ("interleaved:v=2", "looped:2")
    with pytest.raises(UsageError, match="has placement looped:2: leave out the placement"):
        make_plan(profile, 2, 8, schedule="interleaved:v=2", placements="v")


def test_too_few_layers_for_a_v_give_the_last_ranks_one_stage():
    profile = profile_of([1, 1, 1, 1, 1])
    plan = make_plan(profile, 3, 6, placements=[[0, 1, 2, 2, 1]])
    assert plan.layers_per_stage == (1, 1, 1, 1, 1)
    assert str(plan.schedule.placement) == "0,1,2,2,1"


@pytest.mark.parametrize("placements", [None, "linear", "v", "wave:4"])
@pytest.mark.parametrize("lists", [False, True])
def test_the_smallest_limit_named_works(placements, lists):
    profile = profile_of([1, 2, 1, 3, 1, 1, 2, 1, 1, 4], sizes=(1, 2))
    limits = [500.0, 600.0] if lists else 500.0
    with pytest.raises(UsageError, match="nothing fits into the memory") as refused:
        make_plan(profile, 2, 4, limits, placements=placements)
    number, unit = re.search(r"allow ([0-9.]+) (B|KiB) (a rank|more)", str(refused.value)).groups()[
        :2
    ]
    enough = float(number) * {"B": 1, "KiB": 1024}[unit]
    limit = np.array(limits) + enough if lists else enough
    make_plan(profile, 2, 4, limit, placements=placements)
    if placements == "linear":
        with pytest.raises(UsageError, match="nothing fits"):
            make_plan(profile, 2, 4, limit * 0.99, placements=placements)


def test_a_shortage_says_whose_and_of_what():
    with pytest.raises(UsageError) as refused:
        make_plan(profile_of([1, 1]), 2, 4, [500, 450], placements="linear")
    assert str(refused.value) == (
        "nothing fits into the memory: with the layers spread as well as can be, rank 1 (block 1) "
        "needs 400 B for parameters, gradients and optimizer and 100 B for the activations of a "
        "microbatch of 1, but has 450 B: allow 50 B more on every rank"
    )


def test_a_schedule_that_does_not_fit_names_a_limit_that_does():
    profile = profile_of([1] * 6)
    with pytest.raises(UsageError, match="gpipe does not fit into the memory") as refused:
        make_plan(profile, 2, 8, 1600.0, schedule="gpipe")
    number = float(re.search(r"allow ([0-9.]+) KiB a rank", str(refused.value))[1])
    plan = make_plan(profile, 2, 8, number * 1024, schedule="gpipe")
    assert max(plan.forecast.peak_bytes) <= number * 1024


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"num_ranks": 0}, "ranks must be a whole number of 1 or more, not 0"),
        ({"num_ranks": 5}, "4 layers cannot be shared by 5 ranks"),
        ({"batch_size": 3}, "a batch of 3 samples cannot be cut into microbatches of 2"),
        ({"microbatch_sizes": [4]}, "the profile has microbatches of 2 samples, not 4"),
        ({"validate": "later"}, "validate must be 'post' or 'sync', not 'later'"),
        ({"effort": "some"}, "effort must be one of quick, default, thorough, not 'some'"),
        ({"placements": "ring"}, "placement 'ring' is not known"),
        ({"placements": "wave:4"}, "wave:4 has 8 stages on 2 ranks, but there are only 4 layers"),
        ({"memory": [1, 2, 3]}, "3 memory limits given for 2 ranks"),
        ({"memory": -1}, "memory limits must not be negative"),
        ({"memory": True}, "memory must be a number, or one for each rank: True"),
        ({"memory": "12"}, "memory must be a number, or one for each rank: '12'"),
        ({"memory": [True, 2.5]}, "memory must be a number, or one for each rank"),
        ({"memory": 10**400}, "memory must be a number, or one for each rank"),
        ({"schedule": "zb-h9"}, "unknown schedule 'zb-h9'"),
        ({"schedule": 1}, "schedule must be the name of a registered schedule, such as zb-h1"),
        ({"microbatch_sizes": 1}, "microbatch sizes must be a list of whole numbers, not 1"),
        ({"microbatch_sizes": [True]}, "must be a list of whole numbers, not [True]"),
        ({"placements": 0}, "placements must be names, Placements or the rank of each stage"),
        ({"placements": 3.5}, "placements must be names, Placements or the rank of each stage"),
        ({"batch_size": 10**20}, "batch size 100000000000000000000 is too large"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(keywords, problem):
    asked = {"num_ranks": 2, "batch_size": 4} | keywords
    with pytest.raises(UsageError, match=re.escape(problem)) as refused:
        make_plan(profile_of([1] * 4, sizes=(2,)), **asked)
    assert "\n" not in str(refused.value)


def test_only_a_profile_is_planned():
    with pytest.raises(UsageError, match=r"profile must be a Profile, such as .* not None"):
        make_plan(None, 2, 4)


def test_more_effort_is_never_worse():
    profile = profile_of([1, 2, 1, 3, 1, 2], step_overhead_ms=1)
    steps = [
        make_plan(profile, 2, 6, 9000.0, placements=["linear", "v"], effort=effort).forecast.step_ms
        for effort in ("quick", "default")
    ]
    assert is_no_more(steps[1], steps[0])
