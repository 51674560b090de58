"""Is a step forecast as it would run, and does no schedule beat the bound?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.profiles import block, profile_of, profiles
from zerobubble import build, simulate
from zerobubble.ir import linear
from zerobubble.plan.forecast import costs_of, forecast, step_bound
from zerobubble.plan.pace import Pace
from zerobubble.plan.partition import partition
from zerobubble.plan.scheduling import fused
from zerobubble.profile import LayerCosts, Profile
from zerobubble.verify import verify

NAMES = ("1f1b", "zb-h1", "zb-h2", "gpipe", "zb-v", "interleaved:v=2")


def test_without_a_barrier_the_slowest_rank_sets_the_pace():
    # Spans of 1F1B with F = B = W = 1, p = 2, m = 4: 15 and 12.
    profile = profile_of([1, 1], step_overhead_ms=7)
    slow = LayerCosts(**(vars(profile.at(1)[1]) | {"optimizer_ms": 4}))
    profile = Profile("m", "d", ("a", "b"), {1: (profile.at(1)[0], slow)}, step_overhead_ms=7)
    schedule = build("1f1b", 2, 4)
    timeline = simulate(schedule, costs_of(profile, 1, (1, 1), schedule))
    assert timeline.span_per_rank == [15, 12]
    assert forecast(profile, 1, (1, 1), schedule, "post").step_ms == 12 + 4 + 7
    assert forecast(profile, 1, (1, 1), schedule, "sync").step_ms == 15 + 4 + 7


def test_the_rank_that_learns_the_norm_first_never_guesses():
    layer = block(optimizer_ms=6, plain_optimizer_ms=2)
    cases = {
        "zb-h1": {"post": (6, 6, 2), "sync": (2, 2, 2)},
        "zb-v": {"post": (12, 12, 4), "sync": (4, 4, 4)},
    }
    for name, expected in cases.items():
        lengths = (1,) * len(build(name, 3, 6).placement.stage_to_rank)
        wide = Profile("m", "d", tuple("abcdef"[: len(lengths)]), {1: (layer,) * len(lengths)})
        for validate, optimizer_ms in expected.items():
            found = forecast(wide, 1, lengths, build(name, 3, 6), validate)
            assert found.optimizer_ms == optimizer_ms
    unknown = Profile("m", "d", ("a",), {1: (block(optimizer_ms=6),)})
    assert forecast(unknown, 1, (1,), build("zb-h1", 1, 2)).optimizer_ms == (6,)
    alone = Profile("m", "d", ("a",), {1: (layer,)})
    assert forecast(alone, 1, (1,), build("zb-h1", 1, 2)).optimizer_ms == (2,)


def test_unsplit_stages_have_the_times_of_a_plain_backward():
    layer = block(plain_forward_ms=0.5, plain_backward_ms=1.5)
    profile = Profile("m", "d", ("a",), {1: (layer,)})
    plain, split = (costs_of(profile, 1, (1,), build(name, 1, 2)) for name in ("1f1b", "zb-h1"))
    assert (plain.forward[0], plain.backward_input[0] + plain.backward_weight[0]) == (0.5, 1.5)
    assert (split.forward[0], split.backward_input[0], split.backward_weight[0]) == (1, 1, 1)


def test_memory_is_weights_and_the_peak_of_activations():
    profile = profile_of([1, 1, 1])
    expected = forecast(profile, 1, (2, 1), build("1f1b", 2, 4))
    assert expected.weight_bytes == (800, 400)
    # 1F1B holds two microbatches on rank 0 (two layers, input and one saved input), one on rank 1.
    assert expected.activation_bytes == (2 * (160 + 40), 80 + 20)
    assert expected.peak_bytes == (1200, 500)


@given(profiles(), st.sampled_from(NAMES), st.data())
@settings(max_examples=60, deadline=None)
def test_a_pace_gives_what_a_simulation_gives_and_nothing_beats_the_bound(profile, name, data):
    num_ranks = data.draw(st.integers(1, 3))
    schedule = build(name, num_ranks, 2 * num_ranks)
    if schedule.num_stages > profile.num_layers:
        return
    size = min(profile.layers)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=profile.num_layers,
                                 max_size=profile.num_layers))  # fmt: skip
    lengths = partition(weights, schedule.num_stages).layers_per_stage
    costs = costs_of(profile, size, lengths, schedule)
    timeline, paced = simulate(schedule, costs), Pace(schedule)(costs)
    assert paced.spans.tolist() == timeline.span_per_rank
    assert paced.makespan == timeline.makespan
    assert paced.peaks.tolist() == timeline.peak_memory_per_rank
    for validate in ("post", "sync"):
        expected = forecast(profile, size, lengths, schedule, validate)
        assert expected.step_ms >= expected.bound_ms * (1 - 1e-9)
    memory = np.array(forecast(profile, size, lengths, schedule).peak_bytes)
    limited = forecast(profile, size, lengths, schedule, "post", memory)
    assert limited.step_ms >= limited.bound_ms * (1 - 1e-9)
    assert limited.bound_ms >= forecast(profile, size, lengths, schedule).bound_ms


def test_the_bound_counts_the_optimizer_of_the_rank_that_it_is_about():
    profile = Profile(
        "m", "d", ("a", "b"), {1: (block(2, optimizer_ms=1), block(1, optimizer_ms=3))}
    )
    post = step_bound(profile, 1, (1, 1), linear(2), 20, None, "post")
    assert post.value == pytest.approx(20 * 6 + 1)
    sync = step_bound(profile, 1, (1, 1), linear(2), 20, None, "sync")
    assert sync.value >= 20 * 6 + 3


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "1f1b"])
def test_fusing_keeps_the_order_and_only_joins_whole_stages(name):
    schedule = build(name, 3, 6)
    joined = fused(schedule)
    verify(joined)
    assert joined.split_stages() < schedule.split_stages() or joined == schedule
    costs = costs_of(profile_of([1] * schedule.num_stages), 1, [1] * schedule.num_stages, schedule)
    assert simulate(joined, costs).span <= simulate(schedule, costs).span
