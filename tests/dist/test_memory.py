"""Does the memory of boundary tensors stay the same however many microbatches there are?"""

import pytest

from tests.dist import models
from tests.dist.harness import launch, values
from zerobubble import Pipeline, build

BYTES_OF_BOUNDARY = 2 * models.LENGTH * models.WIDTH * 4


def peaks(rank, schedules):
    """Give the peak of the first step, when layouts are unknown, and of the second."""
    found = {}
    for key, schedule in schedules.items():
        pipe = Pipeline(models.built(models.transformer()), schedule, models.loss_fn)
        pipe.ledger.is_on = True
        batch = models.tokens(2 * schedule.num_microbatches)
        pipe.step(*batch)
        first, pipe.ledger.peak_bytes = pipe.ledger.peak_bytes, 0
        pipe.step(*batch)
        found[key] = first, pipe.ledger.peak_bytes, pipe.ledger.live_bytes()
    return found


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_peak_bytes_are_equal_for_8_and_64_microbatches(num_ranks):
    keys = [(name, m) for name in ("1f1b", "zb-h1", "zb-h2", "gpipe") for m in (8, 64)]
    schedules = {key: build(key[0], num_ranks, key[1]) for key in keys}
    for rank, found in enumerate(values(launch(peaks, num_ranks, schedules))):
        for name in ("1f1b", "zb-h1", "zb-h2"):
            assert found[name, 8] == found[name, 64], f"{name} on rank {rank}"
        for key, (first, second, after) in found.items():
            assert 0 < first <= second, f"{key} on rank {rank}"
            assert second % BYTES_OF_BOUNDARY == 0
            assert after == 0, f"{key} on rank {rank}: a boundary tensor outlived its step"
        if rank:  # GPipe keeps the inputs of all forwards for the backwards: the ledger sees it
            assert found["gpipe", 64][1] >= found["gpipe", 8][1] + 56 * BYTES_OF_BOUNDARY
