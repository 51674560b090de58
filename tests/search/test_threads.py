"""Do calls on threads of their own end together when one fails?"""

from threading import Event

import pytest

from zerobubble.search.threads import side_by_side


def test_results_come_in_the_order_of_the_items():
    first_may_end = Event()

    def last_ends_first(item, cancelled):
        if item == 2:
            first_may_end.set()
        assert first_may_end.wait(10)
        return 10 * item

    assert side_by_side(last_ends_first, [0, 1, 2]) == [0, 10, 20]
    assert side_by_side(last_ends_first, []) == []


def test_a_failure_ends_the_others():
    def fail_or_wait(item, cancelled):
        if item == 0:
            raise ValueError("no")
        assert cancelled.wait(10), "nobody told it to end"

    with pytest.raises(ValueError, match="no"):
        side_by_side(fail_or_wait, [0, 1])
