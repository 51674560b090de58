"""Is every schedule valid at every size, and free of deadlock when it is lowered?"""

import pytest

from zerobubble.errors import ScheduleError
from zerobubble.lower import lower
from zerobubble.schedules import REGISTRY, build
from zerobubble.verify import verify

NAMES = [
    *REGISTRY,
    "breadth-first:v=3",
    "gis-h:v=3",
    "grouped-interleaved:v=3",
    "interleaved:v=3",
    "po-f:v=3",
    "po-h:v=3",
    "wave:waves=1",
    "wave:waves=3",
]


def numbers_of_microbatches(num_ranks):
    p = num_ranks
    return sorted({1, 2, 3, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 1, 3 * p} - {0})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_ranks", range(1, 10))
def test_every_schedule_is_valid(name, num_ranks):
    for num_microbatches in numbers_of_microbatches(num_ranks):
        try:
            schedule = build(name, num_ranks, num_microbatches)
        except ScheduleError:
            assert name.startswith("interleaved")
            assert num_microbatches % num_ranks
            continue
        verify(schedule)
        if num_ranks <= 4:
            lower(schedule)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_grouped_interleaved_takes_groups_of_half_to_all_ranks(num_ranks):
    for g in range((num_ranks + 1) // 2, num_ranks + 1):
        for num_microbatches in numbers_of_microbatches(num_ranks):
            verify(build(f"grouped-interleaved:g={g}", num_ranks, num_microbatches))
    message = f"{(num_ranks + 1) // 2} to {num_ranks} microbatches on {num_ranks} ranks"
    for g in {(num_ranks + 1) // 2 - 1, num_ranks + 1} - {0}:
        with pytest.raises(ScheduleError, match=message):
            build(f"grouped-interleaved:g={g}", num_ranks, 8)
