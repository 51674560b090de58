"""Which rows does a picture have? One for the ops of each rank, beneath it its copies."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zerobubble.ir import Codes, Kind, Schedule
from zerobubble.simulate import Timeline
from zerobubble.waits import lanes_of

OUT, IN = "out", "in"


class Lane(NamedTuple):
    """Ops of a rank that follow each other in time.

    Attributes:
        rank: whose they are.
        name: "" for what the rank computes, "out" for its copies to the host, "in" for those back.
        indices: where the ops are in the rank's order, by time.
    """

    rank: int
    name: str
    indices: Codes


def rows_of(timeline: Timeline) -> list[Lane]:
    """List the rows of a timeline; copies that take no time have none.

    >>> from zerobubble import Costs, build, simulate
    >>> [lane[:2] for lane in rows_of(simulate(build("1f1b", 2, 2), Costs.uniform(2)))]
    [(0, ''), (1, '')]
    """
    return [lane for rank in range(timeline.schedule.num_ranks) for lane in _of(timeline, rank)]


def _of(timeline: Timeline, rank: int) -> Iterator[Lane]:
    start, end = timeline.start[rank], timeline.end[rank]
    computed, out, back = lanes_of(timeline.schedule, rank)
    yield Lane(rank, "", computed)
    for name, copies in ((OUT, out), (IN, back)):
        if (end[copies] > start[copies]).any():
            yield Lane(rank, name, copies)


def kinds_in(lanes: Sequence[Lane], schedule: Schedule) -> list[Kind]:
    """List the kinds of op that some rows show."""
    kinds = (schedule.fields(schedule.orders[lane.rank][lane.indices])[0] for lane in lanes)
    return [Kind(kind) for kind in np.flatnonzero(np.bincount(np.concatenate([*kinds]))).tolist()]
