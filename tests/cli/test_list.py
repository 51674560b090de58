"""Does ``zerobubble list`` tell every registered schedule?"""

import json

from zerobubble.schedules import REGISTRY


def test_every_schedule_is_listed_with_its_summary(zerobubble):
    status, out, err = zerobubble("list")
    assert (status, err) == (0, "")
    for recipe in REGISTRY.values():
        assert recipe.summary in out
        assert recipe.paper in out
    words = [line.split() for line in out.splitlines()]
    assert "interleaved looped v=2 arXiv 2104.04473, section 2.2".split() in words
    assert "grouped-interleaved looped g,v=2 arXiv 2503.01328, section 4".split() in words


def test_json(zerobubble):
    rows = json.loads(zerobubble("list", "--json").out)["schedules"]
    assert [row["schedule"] for row in rows] == [*REGISTRY]
    assert all(
        [*row] == ["schedule", "placement", "parameters", "paper", "summary"] for row in rows
    )
    assert {row["schedule"]: row["parameters"] for row in rows}["interleaved"] == {"v": 2}
