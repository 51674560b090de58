"""Is a profile the same after it was written and read, and is every fault of a file told?"""

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobubble.errors import UsageError
from zerobubble.profile import LayerCosts, Link, Profile
from zerobubble.profile.file import dumps, load, loads, save

NUMBERS = st.floats(0, 1e100) | st.integers(0, 2**60)
NAMES = st.text(min_size=1).filter(str.isprintable)
ROWS = st.builds(LayerCosts, **{each.name: NUMBERS for each in fields(LayerCosts)})
LINKS = st.builds(Link, st.floats(0, 1e100), st.floats(1e-9, 1e100) | st.just(math.inf))
PAIRS = st.tuples(st.integers(0, 9), st.integers(10, 19))


@st.composite
def profiles(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=5))
    rows = st.sampled_from(draw(st.lists(ROWS, min_size=1, max_size=3)))
    tables = st.lists(rows, min_size=len(names), max_size=len(names)).map(tuple)
    return Profile(
        draw(NAMES),
        draw(NAMES),
        tuple(names),
        draw(st.dictionaries(st.integers(1, 10**6), tables, min_size=1, max_size=3)),
        draw(LINKS),
        draw(st.dictionaries(PAIRS, LINKS, max_size=3)),
        draw(st.floats(0, 1e100)),
        draw(st.none() | NUMBERS),
    )


@given(profiles())
def test_what_is_written_is_read(profile):
    assert loads(dumps(profile), "it") == profile


def test_equal_layers_are_written_once_and_without_zeros(tmp_path):
    block, head = LayerCosts(1.5, 2, output_bytes=8), LayerCosts(7)
    profile = Profile("m", "cpu", ("a", "b", "c"), {1: (block, block, head), 2: (block,) * 3})
    save(profile, tmp_path / "profile.json")
    written = json.loads((tmp_path / "profile.json").read_text())
    assert written["costs"] == [
        {"forward_ms": 1.5, "backward_input_ms": 2, "output_bytes": 8},
        {"forward_ms": 7},
    ]
    assert written["layers"] == {"1": [0, 0, 1], "2": [0, 0, 0]}
    assert load(tmp_path / "profile.json") == profile


GOOD = json.loads(dumps(Profile("m", "cpu", ("a",), {1: (LayerCosts(1),)})))


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"format": "zerobubble-schedule"}, "format is 'zerobubble-schedule', but a profile has"),
        ({"version": 2}, "version is 2, but this release reads version 1"),
        ({"model": None}, "the profile: key 'model' is missing: the keys are format, version,"),
        ({"color": 1}, "the profile: unknown key 'color': the keys are format,"),
        ({"device": 3}, "device must be a text of printable characters, not 3"),
        ({"layer_names": "a"}, "layer_names must be a list, not 'a'"),
        ({"layer_names": ["a", "b"]}, "size 1 has costs of 1 layers, but there are 2"),
        ({"layer_names": [""]}, "layer_names[0] must be a text of printable characters, not ''"),
        ({"costs": [3]}, "costs[0] must be an object, not 3"),
        ({"costs": [{"forward": 3}]}, "costs[0]: unknown key 'forward': the keys are forward_ms,"),
        ({"costs": [{"forward_ms": -1}]}, "costs[0].forward_ms must be a number from 0 to 1e+100"),
        ({"costs": [{"forward_ms": 10**400}]}, "costs[0].forward_ms must be a number"),
        (
            {"costs": [{"forward_ms": True}]},
            "costs[0].forward_ms must be a number from 0 to 1e+100",
        ),
        ({"layers": {}}, "there must be a layer and a microbatch size"),
        ({"layers": {"x": [0]}}, "layers['x']: 'x' is not a microbatch size: write a number"),
        ({"layers": {"0": [0]}}, "'0' is not a microbatch size"),
        ({"layers": {"1": [1]}}, "layers['1'][0] must be the number of a row of costs, of which"),
        ({"link": {}}, "link: key 'latency_ms' is missing: the keys are latency_ms, bytes_per_ms"),
        ({"link": {"latency_ms": 0, "bytes_per_ms": 0}}, "bytes_per_ms must be above 0, not 0"),
        ({"links": [{}]}, "links[0].ranks must be a list, not None"),
        ({"links": [{"ranks": [1, 0]}]}, "links[0].ranks must be two ranks, the lower first"),
        (
            {"links": [{"ranks": [0, 1], "latency_ms": 0, "bytes_per_ms": None}] * 2},
            "links[1]: ranks [0, 1] are given twice: delete one",
        ),
        ({"step_overhead_ms": "1"}, "step_overhead_ms must be a number from 0 to 1e+100, not '1'"),
        ({"memory_bytes": -1}, "memory_bytes must be a number from 0 to 1e+100, not -1"),
    ],
)
def test_a_fault_is_told_in_one_line(changed, part):
    values = {key: value for key, value in (GOOD | changed).items() if value is not None}
    if "memory_bytes" not in changed:
        values["memory_bytes"] = None
    with pytest.raises(UsageError) as caught:
        loads(json.dumps(values), "profile.json")
    message = str(caught.value)
    assert message.startswith("profile.json: ")
    assert part in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_no_object_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*missing.json: No such file"):
        load(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="mine: a profile must be an object, not"):
        loads("[]", "mine")


ROW = LayerCosts(1)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        *[
            (lambda v=value: Profile("m", "d", ("a",), {1: (ROW,)}, step_overhead_ms=v), "overhead")
            for value in (math.nan, math.inf, -1, "a", True, None, 10**400)
        ],
        *[
            (lambda v=value: Profile("m", "d", ("a",), {1: (ROW,)}, memory_bytes=v), "memory_bytes")
            for value in (math.nan, -1, "a", True)
        ],
        *[
            (lambda v=value: LayerCosts(v), "forward_ms must be a number from 0 to 1e100")
            for value in (10**400, 1e300, math.nan, -1, "a", True, None)
        ],
        *[(lambda v=value: Link(v), "latency_ms") for value in (True, "a", None, math.inf)],
        *[(lambda v=value: Link(0, v), "bytes_per_ms") for value in (True, "a", None, 0, math.nan)],
        (lambda: Profile("m", "d", ("a",), {1: (None,)}), "costs of layer 0 at microbatch size 1"),
        (lambda: Profile("m", "d", ("a",), {1: None}), "costs at microbatch size 1 must be tuple"),
        (lambda: Profile("m", "d", ("a",), [1]), "layers must be Mapping, not [1]"),
        (lambda: Profile("m", "d", ("a",), {1: (ROW,)}, None), "link must be Link, not None"),
        (lambda: Profile("m", "d", ("a",), {1: (ROW,)}, links={(0, 1): 3}), "links between (0, 1)"),
    ],
)
def test_no_profile_is_made_of_nonsense(make, part):
    with pytest.raises(UsageError) as caught:
        make()
    assert part in str(caught.value)
