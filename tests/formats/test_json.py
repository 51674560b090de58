"""Does a schedule survive JSON, and is every malformed file refused in one clear line?"""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies import lists_of_ops, schedules, with_orders
from zerobubble.errors import UsageError, ZeroBubbleError
from zerobubble.formats.json import KEYS, dumps, load, loads, save
from zerobubble.schedules import build
from zerobubble.verify import violations

VALID = json.loads(dumps(build("zb-h1", 2, 2)))

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**18, max_value=10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["F0@0", "F0@9", "X0@0", "F-1@0", "F٣@0", "F0@0\n", "zerobubble-schedule"]),
)
values = st.recursive(
    atoms, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4)
)


def reason(text):
    with pytest.raises(UsageError) as error:
        loads(text, "mine.json")
    message = str(error.value)
    assert message.startswith("mine.json: ")
    assert "\n" not in message
    return message.removeprefix("mine.json: ")


def changed(**values):
    return json.dumps(VALID | values)


@given(schedules())
def test_a_schedule_round_trips(schedule):
    assert loads(dumps(schedule), "mine.json") == schedule
    assert len(dumps(schedule).splitlines()) == 9 + schedule.num_ranks


def test_a_file_round_trips(tmp_path):
    schedule = build("interleaved", 2, 4)
    save(schedule, tmp_path / "mine.json")
    assert load(tmp_path / "mine.json") == schedule


def test_the_layout_is_for_people():
    assert dumps(build("zb-h1", 2, 2)) == (
        "{\n"
        '  "format": "zerobubble-schedule",\n'
        '  "version": 1,\n'
        '  "name": "zb-h1",\n'
        '  "placement": [0, 1],\n'
        '  "num_microbatches": 2,\n'
        '  "orders": [\n'
        '    ["F0@0", "F1@0", "B0@0", "W0@0", "B1@0", "W1@0"],\n'
        '    ["F0@1", "B0@1", "F1@1", "B1@1", "W0@1", "W1@1"]\n'
        "  ]\n"
        "}\n"
    )


def read_or_refuse(text):
    """Check that a text either reads as a schedule that can be judged, or is refused."""
    with suppress(ZeroBubbleError):
        violations(loads(text, "mine.json"))


@given(values)
def test_any_json_value_is_read_or_refused(value):
    read_or_refuse(json.dumps(value))


@given(st.text())
@example("[" * 100_000)
@example("1" * 5_000)
@example('"\\ud800"')
def test_any_text_is_read_or_refused(text):
    read_or_refuse(text)


@given(st.dictionaries(st.sampled_from([*KEYS, "other"]), values, max_size=2))
def test_any_changed_value_is_read_or_refused(change):
    read_or_refuse(changed(**change))


@given(st.data(), values)
def test_any_changed_place_is_read_or_refused(data, value):
    file = json.loads(json.dumps(VALID))
    place = file
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = value
            break
        place = place[key]
    read_or_refuse(json.dumps(file))


@given(st.data())
def test_any_cut_or_changed_text_is_read_or_refused(data):
    text = dumps(build("1f1b", 2, 2))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    read_or_refuse(text[:start] + data.draw(st.text(max_size=3)) + text[end:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: not JSON: Expecting value"),
        ('{\n  "format": 1,\n}', "line 3, column 1: not JSON: "),
        ("[" * 100_000, "a number has too many digits or lists are nested too deep: shorten them"),
        ("1" * 5_000, "a number has too many digits or lists are nested too deep: shorten them"),
        ('{"name": "a", "name": "b"}', "key 'name' is given twice: delete one"),
        ("[]", "a schedule is an object with the keys format, version, name, placement, "),
        ("{}", "key 'format' is missing: the keys are format, version, name, placement, "),
        (changed(colour="red"), "unknown key 'colour': the keys are format, version, name, "),
        (changed(format="other"), "format is 'other', but a schedule has 'zerobubble-schedule'"),
        (changed(version=2), "version is 2, but this release reads version 1"),
        (changed(version=True), "version is True, but this release reads version 1"),
        (changed(version=1.0), "version is 1.0, but this release reads version 1"),
        (changed(name=""), "name must be a text of printable characters, not ''"),
        (changed(name="a\nb"), "name must be a text of printable characters, not 'a\\nb'"),
        (changed(name=1), "name must be a text of printable characters, not 1"),
        (changed(placement=4), "placement must be a list, not 4"),
        (changed(placement=[]), "placement [] must name every rank from 0 to the largest at "),
        (changed(placement=[0, 2]), "placement [0, 2] must name every rank from 0 to the "),
        (changed(placement=[1, 1]), "placement [1, 1] must name every rank from 0 to the "),
        (changed(placement=[0, True]), "placement[1] must be the number of a rank, not True"),
        (changed(placement=[0, -1]), "placement[1] must be the number of a rank, not -1"),
        (changed(placement=[0, 1.0]), "placement[1] must be the number of a rank, not 1.0"),
        (changed(placement=[0, 10**30]), "placement [0, 1000000000000000000000000000000] must "),
        (changed(num_microbatches=0), "num_microbatches must be 1 or more, not 0"),
        (changed(num_microbatches=-1), "num_microbatches must be 1 or more, not -1"),
        (changed(num_microbatches=2.0), "num_microbatches must be 1 or more, not 2.0"),
        (changed(num_microbatches=True), "num_microbatches must be 1 or more, not True"),
        (changed(num_microbatches="2"), "num_microbatches must be 1 or more, not '2'"),
        (
            changed(num_microbatches=10**12),
            "num_microbatches is 1000000000000, but orders has only 12 ops: "
            "write how many microbatches the ops name",
        ),
        (changed(orders={}), "orders must be a list, not {}"),
        (changed(orders=[[], 1]), "orders[1] must be a list, not 1"),
        (
            changed(orders=[[]]),
            "orders has 1 lists, but placement has 2 ranks: give one list for each rank",
        ),
        (
            changed(orders=[["F0@0", "X0@0"], []]),
            "orders[0][1]: 'X0@0' is not an op: write kind, microbatch and stage, like W3@2",
        ),
        (changed(orders=[[], [7]]), "orders[1][0]: 7 is not an op: write kind, microbatch and "),
        (changed(orders=[[], ["F٣@0"]]), "orders[1][0]: 'F٣@0' is not an op: "),
        (changed(orders=[[], ["F0@0\n"]]), "orders[1][0]: 'F0@0\\n' is not an op: "),
        (
            changed(orders=[["F2@0"], []]),
            "orders[0][0]: 'F2@0' does not exist: there are stages 0..1 and microbatches 0..1",
        ),
        (changed(orders=[["F0@2"], []]), "orders[0][0]: 'F0@2' does not exist: "),
    ],
)
def test_the_message_names_place_and_fix(text, message):
    assert reason(text).startswith(message)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_needed(key):
    file = {k: v for k, v in VALID.items() if k != key}
    assert reason(json.dumps(file)).startswith(f"key {key!r} is missing: the keys are format, ")


def test_a_well_formed_file_with_a_wrong_schedule_is_read():
    schedule = build("zb-h1", 2, 2)
    missing, doubled, misplaced = (lists_of_ops(schedule) for _ in range(3))
    missing[0].pop()
    doubled[1].append(doubled[1][0])
    misplaced[1].append(misplaced[0].pop())
    rules = []
    for orders in (missing, doubled, misplaced):
        read = loads(dumps(with_orders(schedule, orders)), "mine.json")
        rules.append(violations(read)[0].rule)
    assert rules == ["every-op-once", "every-op-once", "op-on-its-rank"]


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe9"}')
    for path, message in [
        (tmp_path / "none.json", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "latin.json", "it is not UTF-8 text"),
        ("nul\0.json", "embedded null byte"),
    ]:
        with pytest.raises(UsageError, match=message):
            load(path)


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        save(build("1f1b", 1, 1), tmp_path / "none" / "mine.json")
