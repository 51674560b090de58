"""Is the longest stage as short as brute force says, within the same memory?"""

from itertools import combinations

import numpy as np
import pytest

from zerobubble.errors import UsageError
from zerobubble.ir import Placement, linear, looped, wave
from zerobubble.plan.cuts import interval_sums, longest_stage, moves, sums_of_ranks
from zerobubble.plan.packing import WORK
from zerobubble.plan.partition import partition

SHAPES = ("linear", "looped", "wave", "any")


def draw_placement(random, shape):
    num_ranks, per_rank = int(random.integers(1, 5)), int(random.integers(2, 4))
    if shape == "linear":
        return linear(num_ranks)
    if shape in ("looped", "wave"):
        return (looped if shape == "looped" else wave)(min(num_ranks, 3), per_rank)
    more = random.integers(0, num_ranks, int(random.integers(0, 4)))
    return Placement(tuple(random.permutation([*range(num_ranks), *more]).tolist()))


def draw_instance(seed):
    random = np.random.default_rng(seed)
    placement = draw_placement(random, SHAPES[seed % len(SHAPES)])
    num_layers = placement.num_stages + int(random.integers(0, 6))
    weights = random.integers(0, 9, num_layers) * (1.0 if seed % 3 else 0.1)
    sizes = random.integers(0, 9, num_layers).astype(float)
    stage_bytes = interval_sums(sizes) + int(random.integers(0, 3))
    mean = sizes.sum() / placement.num_ranks
    limits = np.inf if seed % 5 == 0 else random.uniform(0.9, 2.2, placement.num_ranks) * mean
    limits = np.broadcast_to(limits, placement.num_ranks) + 2.0
    return weights, placement, stage_bytes, limits


def brute_force(weights, placement, stage_bytes, limits):
    """The shortest longest stage of all partitions, or inf."""
    num_layers, num_stages = len(weights), placement.num_stages
    times, best = interval_sums(weights), np.inf
    for ends in combinations(range(1, num_layers), num_stages - 1):
        lengths = np.diff([0, *ends, num_layers])
        held = sums_of_ranks(stage_bytes, lengths, placement.stage_to_rank, placement.num_ranks)
        if (held <= limits).all():
            best = min(best, longest_stage(times, lengths))
    return best


@pytest.mark.parametrize("block", range(10))
def test_the_longest_stage_is_that_of_brute_force_on_500_instances(block):
    outcomes = []
    for seed in range(50 * block, 50 * block + 50):
        weights, placement, stage_bytes, limits = draw_instance(seed)
        best = brute_force(weights, placement, stage_bytes, limits)
        # Where every rank has one stage, the answer is right without any search.
        work = 0 if placement.num_stages == placement.num_ranks else WORK
        found = partition(weights, placement.num_stages, placement, stage_bytes, limits, work)
        outcomes.append(found is None)
        if found is None:
            assert best == np.inf, seed
            continue
        lengths = found.layers_per_stage
        assert found.is_proved
        assert sum(lengths) == len(weights)
        assert min(lengths) >= 1
        assert longest_stage(interval_sums(weights), lengths) == pytest.approx(best, rel=1e-9), seed
        held = sums_of_ranks(stage_bytes, lengths, placement.stage_to_rank, placement.num_ranks)
        assert (held <= limits).all(), seed
    assert 2 <= sum(outcomes) <= 40, "some do not fit, and many do"


def test_of_equal_partitions_the_evenest_is_taken():
    assert partition([4, 1, 1, 1, 1], num_stages=3).layers_per_stage == (1, 2, 2)


def test_a_search_that_gives_up_proves_nothing():
    weights, placement = [1, 2, 3, 4, 5, 6, 7, 8], wave(2, 2)
    stage_bytes = interval_sums([8, 1, 1, 1, 1, 1, 1, 8])
    limits = [11, 11]
    assert partition(weights, 4, placement, stage_bytes, limits) is None
    few = partition(weights, 4, placement, stage_bytes, [16, 8], work=1)
    assert few is None or not few.is_proved


def test_many_stages_that_share_memory_are_packed_in_no_time():
    layers = np.ones(82)
    layers[[0, -1]] = 4
    placement = wave(8, 4)
    limits = np.full(8, 1.01 * layers.sum() / 8)
    found = partition(np.ones(82), 32, placement, interval_sums(layers), limits)
    held = sums_of_ranks(interval_sums(layers), found.layers_per_stage, placement.stage_to_rank, 8)
    assert (held <= limits).all()


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(UsageError, match="2 layers cannot be cut into 3 stages"):
        partition([1, 1], num_stages=3)


def test_a_move_shifts_all_boundaries_between_two_stages():
    assert list(moves((3, 1, 2), givers=[0, 1], takers=[2])) == [(2, 1, 3)]
