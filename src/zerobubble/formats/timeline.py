"""How are measured timelines written as JSON?

The schedule that ran, and for each recorded step the starts and ends of every rank's ops, in the
rank's order, in milliseconds::

    {"format": "zerobubble-timeline", "version": 1, "unit": "ms", "schedule": {...},
     "steps": [{"start": [[0.0, 1.5], [1.6, 3.1]], "end": [[1.5, 3.0], [3.1, 4.6]]}]}
"""

import json
from collections.abc import Sequence

from zerobubble.formats.json import dumps
from zerobubble.simulate import Timeline

FORMAT, VERSION = "zerobubble-timeline", 1


def dumps_timelines(timelines: Sequence[Timeline]) -> str:
    """Write timelines of one schedule as JSON text."""
    schedule = json.loads(dumps(timelines[0].schedule)) if timelines else None
    steps = [
        {
            side: [times.round(6).tolist() for times in getattr(timeline, side)]
            for side in ("start", "end")
        }
        for timeline in timelines
    ]
    head = {"format": FORMAT, "version": VERSION, "unit": "ms", "schedule": schedule}
    return json.dumps(head | {"steps": steps}) + "\n"
