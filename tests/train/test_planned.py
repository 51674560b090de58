import random
from dataclasses import replace

import numpy as np
import pytest

from tests.strategies import random_schedule
from zerobubble import Costs, Kind, UsageError, build, simulate
from zerobubble.ir import Placement
from zerobubble.plan import Forecast, Plan
from zerobubble.train.config import DataConfig, OptimizerConfig, RunConfig, TrainConfig
from zerobubble.train.planned import Expected, deviations, follow

FORECAST = Forecast(1.0, 1.0, 1.0, 0.0, 1.0, "rank 0, load", (0.0,), 0.0, (0.0,), (0.0,))
COSTS = Costs(*np.array([[10, 12], [11, 16], [9, 13], [1, 0], [3, 4], [2, 3]], dtype=float))
SLOWER = Costs(*np.array([[10, 12], [11, 26], [9, 14], [1, 0], [3, 4], [2, 3]], dtype=float))


def planned(name="zb-h1", validate="sync"):
    names = ("embedding", "block 0", "head")
    schedule = build(name, 2, 6)
    return Plan("mine", names, (2, 1), schedule, 3, COSTS, validate, None, FORECAST)


def test_a_plan_settles_what_it_was_made_for():
    config = follow(TrainConfig(run=RunConfig(plan="plan.json", steps=7)), planned())
    assert (config.run.ranks, config.run.microbatches, config.run.steps) == (2, 6, 7)
    assert (config.data.batch_size, config.optimizer.validate) == (18, "sync")
    assert follow(config, planned()) == config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"run": RunConfig(plan="x", ranks=3)}, "ranks is 3, but the plan has 2"),
        ({"run": RunConfig(plan="x", microbatches=4)}, "microbatches is 4, but the plan has 6"),
        ({"run": RunConfig(plan="x", schedule="1f1b")}, "schedule is 1f1b, but the plan has zb-h1"),
        (
            {"run": RunConfig(plan="x"), "data": DataConfig(batch_size=4)},
            "batch_size is 4, but the plan has 18: leave it out, or plan anew",
        ),
        (
            {"run": RunConfig(plan="x"), "optimizer": OptimizerConfig(validate="sync")},
            "validate is sync, but the plan has post",
        ),
    ],
)
def test_settings_that_contradict_the_plan_are_refused(section, message):
    with pytest.raises(UsageError, match=message):
        follow(TrainConfig(**section), planned(validate="post"))


@pytest.mark.parametrize("name", ["zb-h1", "1f1b"])
def test_the_ops_that_differ_most_are_named_with_what_they_cost(name):
    timelines = [simulate(build(name, 2, 6), SLOWER) for _ in range(3)]
    found = deviations(timelines, COSTS)
    first = found[0]
    if name == "1f1b":
        assert (first.kind, first.stage, first.num_ops, first.per_step_ms) == (Kind.BW, 1, 6, 66.0)
    else:
        assert (first.kind, first.stage, first.num_ops, first.per_step_ms) == (Kind.B, 1, 6, 60.0)
        assert (found[1].kind, found[1].stage, found[1].per_step_ms) == (Kind.W, 1, 6.0)
    assert all(each.per_step_ms == pytest.approx(0) for each in found[2:])


def test_the_deviations_add_up_to_that_of_the_work():
    schedule = random_schedule(random.Random(1), Placement((0, 1)), 5)
    found = deviations([simulate(schedule, SLOWER)], COSTS)
    slower, faster = (sum(simulate(schedule, each).work_per_rank) for each in (SLOWER, COSTS))
    assert sum(each.per_step_ms for each in found) == pytest.approx(slower - faster)


def expected():
    return Expected(planned(), COSTS, 100.0)


def test_a_step_near_its_forecast_is_one_line():
    timelines = [simulate(planned().schedule, SLOWER)]
    assert list(expected().outcome(109.9, timelines)) == [
        "step time: forecast 100.0 ms, measured 109.9 ms (+9.9%)"
    ]


def test_a_step_far_from_its_forecast_is_a_warning_with_names():
    timelines = [simulate(planned().schedule, SLOWER)]
    line, warning = expected().outcome(180.0, timelines)
    assert line.endswith("(+80.0%)")
    assert "B of stage 1 (head) 26.00 ms instead of 16.00 (6 a step)" in warning
    assert "(embedding to block 0)" not in warning  # its ops took as long as expected
    assert list(expected().outcome(180.0, [])) == [line]


def test_what_the_ops_do_not_account_for_is_not_blamed_on_them():
    slower = [simulate(planned().schedule, SLOWER)]  # ops of rank 1 take 66 ms more
    for measured_ms, total in ((300.0, "+200.0"), (80.0, "-20.0")):
        _, warning = expected().outcome(measured_ms, slower)
        assert f"rank 1, the busiest, account for +66.0 ms of {total} ms a step" in warning
        assert "instead of" not in warning


@pytest.mark.parametrize("validate", ["post", "sync"])
def test_after_a_new_search_the_ops_count_as_measured_and_the_optimizer_as_planned(validate):
    forecast = replace(FORECAST, optimizer_ms=(3.0, 5.0), overhead_ms=0.5)
    plan = replace(planned(validate=validate), forecast=forecast)
    timeline = simulate(build("zb-h2", 2, 6), SLOWER)
    found = Expected.of(plan).after(timeline, SLOWER)
    first, second = timeline.span_per_rank
    post, sync = max(first + 3.0, second + 5.0), timeline.makespan + 5.0
    assert found.step_ms == pytest.approx((post if validate == "post" else sync) + 0.5)
    assert found.costs is SLOWER


def test_activations_get_what_the_weights_leave():
    plan = replace(
        planned(), memory_bytes=(10.0, 8.0), forecast=replace(FORECAST, weight_bytes=(4.0, 5.0))
    )
    assert Expected.of(plan).activation_limits.tolist() == [6.0, 3.0]
    assert expected().activation_limits is None
