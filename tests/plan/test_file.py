"""Does plan.json give back the plan, and every fault one clear line?"""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.profiles import profile_of
from zerobubble import build
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.plan import Plan
from zerobubble.plan.file import dumps, load, loads, save
from zerobubble.plan.forecast import costs_of, forecast
from zerobubble.plan.partition import partition

positive = st.floats(1e-3, 1e6)


@st.composite
def plans(draw):
    """Any plan: layers of any cost, a named schedule, limits of some ranks."""
    num_ranks = draw(st.integers(1, 3))
    schedule = build(draw(st.sampled_from(["1f1b", "zb-h1", "zb-v"])), num_ranks, 4)
    count = draw(st.integers(schedule.num_stages, schedule.num_stages + 3))
    scales = draw(st.lists(positive, min_size=count, max_size=count))
    profile = profile_of(scales, step_overhead_ms=draw(positive))
    lengths = partition(scales, schedule.num_stages).layers_per_stage
    limits = draw(st.none() | st.tuples(*[positive | st.just(math.inf)] * num_ranks))
    return Plan(
        draw(st.text()),
        profile.layer_names,
        lengths,
        schedule,
        1,
        costs_of(profile, 1, lengths, schedule),
        draw(st.sampled_from(["post", "sync"])),
        limits,
        forecast(profile, 1, lengths, schedule),
        tuple(draw(st.lists(st.text(), max_size=2))),
    )


def values_of(plan):
    """All values of a plan, to compare it with another one."""
    return vars(plan) | {"costs": plan.costs.to_dict()}


@given(plans())
@settings(max_examples=50, deadline=None)
def test_a_plan_is_read_back_as_it_was(plan):
    found = loads(dumps(plan), "plan.json")
    assert values_of(found) == values_of(plan)
    assert dumps(found) == dumps(plan)


@pytest.fixture(scope="module")
def written():
    """The text of a plan."""
    profile, schedule = profile_of([1, 1, 1]), build("zb-h1", 2, 2)
    costs = costs_of(profile, 1, (2, 1), schedule)
    expected = forecast(profile, 1, (2, 1), schedule)
    names = profile.layer_names
    memory = (5000.0, math.inf)
    return dumps(Plan("m", names, (2, 1), schedule, 1, costs, "post", memory, expected, ("so",)))


def test_it_goes_through_a_file(written, tmp_path):
    save(loads(written, "text"), tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == written
    assert load(tmp_path / "plan.json").memory_bytes == (5000, math.inf)


def test_every_truncated_file_is_refused_in_one_line(written):
    for length in range(0, len(written) - 2, 7):
        with pytest.raises(UsageError, match=r"^plan\.json: ") as refused:
            loads(written[:length], "plan.json")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["format"], "zerobubble-schedule", "format is 'zerobubble-schedule', but a plan has"),
        (["version"], 2, "version is 2, but this release reads version 1"),
        (["version"], True, "version is True"),
        (["model"], 3, "model must be a text, not 3"),
        (["microbatch_size"], 0, "microbatch_size must be a whole number of 1 or more, not 0"),
        (["microbatch_size"], 1.0, "microbatch_size must be a whole number of 1 or more, not 1.0"),
        (["validate"], "later", "validate must be 'post' or 'sync', not 'later'"),
        (["layer_names"], "abc", "layer_names must be a list, not 'abc'"),
        (["layer_names", 1], None, "layer_names[1] must be a text, not None"),
        (["layers_per_stage"], [3], "layers per stage [3] must be 2 positive numbers"),
        (["layers_per_stage"], [1, 1], "add up to 2, but there are 3 layers"),
        (["layers_per_stage", 0], -1, "layers_per_stage[0] must be a whole number of 1 or more"),
        (["memory_bytes"], [1], "memory_bytes has 1 limits for 2 ranks"),
        (
            ["memory_bytes", 0],
            "all",
            "memory_bytes[0] must be a number from 0 to 1.79769e+308, not 'all'",
        ),
        (["memory_bytes", 0], 10**400, "memory_bytes[0] must be a number from 0 to"),
        (["forecast", "step_ms"], 10**400, "forecast: step_ms must be a number from 0 to"),
        (["microbatch_size"], 10**400, "microbatch_size must be a whole number up to 90071992547"),
        (["costs", "forward", 0], 10**400, "costs: forward must be a number or a list of numbers"),
        (["memory_bytes", 0], math.inf, "memory_bytes[0] must be a number from 0 to"),
        (["costs"], [], "costs must be an object, not []"),
        (["costs", "forward"], [1, 2, 3], "costs: forward has 3 values for 2 stages"),
        (["costs", "forward", 0], -1, "costs: forward must be between 0 and 1e100"),
        (["forecast"], None, "forecast must be an object, not None"),
        (
            ["forecast", "step_ms"],
            "1",
            "forecast: step_ms must be a number from 0 to 1.79769e+308, not '1'",
        ),
        (["forecast", "step_ms"], math.nan, "forecast: step_ms must be a number from 0 to"),
        (["forecast", "weight_bytes"], [1], "forecast: weight_bytes has 1 values for 2 ranks"),
        (["forecast", "binding"], 1, "forecast: binding must be a text, not 1"),
        (["reasons", 0], 1, "reasons[0] must be a text, not 1"),
        (["schedule"], [], "a schedule is an object"),
        (["schedule", "orders", 0, 0], "F9@0", "'F9@0' does not exist"),
    ],
)
def test_a_wrong_value_is_named(written, path, value, problem):
    values = json.loads(written)
    *way, last = path
    inner = values
    for key in way:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(UsageError) as refused:
        loads(json.dumps(values), "plan.json")
    assert str(refused.value).startswith("plan.json: ")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def paths(value, *way):
    """List the way to every number within a value."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [path for key, each in pairs for path in paths(each, *way, key)]
    return [way] if isinstance(value, int | float) else []


@pytest.mark.parametrize("wrong", [10**400, -(10**400), 1e308, math.nan, True, "1", None, [], {}])
def test_no_number_can_be_so_wrong_that_it_is_not_told_as_a_fault(written, wrong):
    for *way, last in paths(json.loads(written)):
        values = inner = json.loads(written)
        for key in way:
            inner = inner[key]
        inner[last] = wrong
        with suppress(UsageError, ScheduleError):
            loads(json.dumps(values), "plan.json")


@pytest.mark.parametrize("place", [(), ("forecast",)])
def test_missing_and_unknown_keys_are_named(written, place):
    values = json.loads(written)
    inner = values[place[0]] if place else values
    for key in list(inner):
        less, more = json.loads(written), json.loads(written)
        del (less[place[0]] if place else less)[key]
        (more[place[0]] if place else more)["extra"] = 1
        with pytest.raises(UsageError, match=f"key '{key}' is missing|{key} is None"):
            loads(json.dumps(less), "plan.json")
        with pytest.raises(UsageError, match="unknown key 'extra'"):
            loads(json.dumps(more), "plan.json")


def test_a_schedule_that_breaks_a_rule_is_refused_with_the_rule(written):
    values = json.loads(written)
    order = values["schedule"]["orders"][1]
    order[0], order[1] = order[1], order[0]
    with pytest.raises(ScheduleError, match=r"plan\.json: zb-h1: rank 1: .*rule input-after-forw"):
        loads(json.dumps(values), "plan.json")
