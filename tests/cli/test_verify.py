"""Does ``zerobubble verify`` say of every wrong file which rule, rank, op and fix?"""

import json

import pytest

from tests.strategies import lists_of_ops, with_orders
from zerobubble.formats.json import save
from zerobubble.ir import B, W
from zerobubble.schedules import REGISTRY, build

SIZE = ("-p", 4, "-m", 8)


@pytest.fixture
def written(tmp_path):
    """Write zb-h1 with changed orders to a file, and return its name."""

    def write(change):
        schedule = build("zb-h1", 4, 8)
        orders = lists_of_ops(schedule)
        change(orders)
        save(with_orders(schedule, orders), tmp_path / "mine.json")
        return "mine.json"

    return write


@pytest.mark.parametrize("name", REGISTRY)
def test_known_schedules_pass(zerobubble, name):
    ops = build(name, 4, 8).num_ops
    assert zerobubble("verify", name, *SIZE) == (
        0,
        f"{name} obeys all 10 rules: 4 ranks, 8 microbatches, {ops} ops\n",
        "",
    )


def test_a_right_file_passes(zerobubble, written):
    path = written(lambda orders: None)
    assert zerobubble("verify", path).status == 0
    assert zerobubble("verify", path, *SIZE, "--costs", "3,2,1,.5,.5", "--memory", 4).status == 0


def test_swapped_ops_are_told(refused, written):
    def swap(orders):
        i, j = orders[2].index(B(2, 3)), orders[2].index(W(2, 3))
        orders[2][i], orders[2][j] = orders[2][j], orders[2][i]

    assert refused("verify", written(swap), status=1) == (
        "rank 2: W3 of stage 2 runs before B3 (rule weight-after-input): swap ops 9 and 16"
    )


def test_missing_doubled_and_misplaced_ops_are_told(refused, written):
    missing = written(lambda orders: orders[1].remove(W(1, 7)))
    assert refused("verify", missing, status=1) == (
        "rank 1: W7 of stage 1 is missing (rule every-op-once): add it"
    )
    doubled = written(lambda orders: orders[1].append(W(1, 7)))
    assert refused("verify", doubled, status=1) == (
        "rank 1: W7 of stage 1 runs 2 times (rule every-op-once): delete all but one of ops 23, 24"
    )
    misplaced = written(lambda orders: orders[2].append(orders[1].pop()))
    assert refused("verify", misplaced, status=1) == (
        "rank 2: W7 of stage 1 is held by rank 1 (rule op-on-its-rank): move op 24 to rank 1"
    )


def test_many_violations_are_a_few_lines(zerobubble, written):
    status, out, err = zerobubble("verify", written(lambda orders: orders[0].clear()))
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == "rank 0: F0 of stage 0 is missing (rule every-op-once): add it"
    assert err.splitlines()[5:] == ["and 11 more"]


def test_a_memory_limit_is_checked(refused):
    assert refused("verify", "1f1b", "-p", 1, "-m", 2, "--memory", ".5", status=1) == (
        "rank 0: F0 of stage 0 (op 0) raises activation memory to 1, over the limit of 0.5 "
        "(rule memory-limit): run a backward before it, or allow 1"
    )


def test_json(zerobubble, written):
    path = written(lambda orders: orders[1].remove(W(1, 7)))
    status, out, _ = zerobubble("verify", path, "--json")
    assert status == 1
    assert json.loads(out) == {
        "schedule": "zb-h1",
        "ranks": 4,
        "microbatches": 8,
        "placement": "linear",
        "violations": [
            {
                "rule": "every-op-once",
                "rank": 1,
                "problem": "W7 of stage 1 is missing",
                "fix": "add it",
            }
        ],
    }
    assert json.loads(zerobubble("verify", "zb-h1", *SIZE, "--json").out)["violations"] == []


def test_a_malformed_file_is_a_usage_error(refused, tmp_path):
    (tmp_path / "mine.json").write_text('{"format": "zerobubble-schedule",}')
    assert refused("verify", "mine.json").startswith(
        "zerobubble verify: mine.json: line 1, column 34: not JSON: "
    )
