"""Are costs read, shared among stages and checked as their documentation says?"""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import costs_for, placements
from zerobubble.costs import Costs, stage_shares
from zerobubble.errors import UsageError
from zerobubble.ir import Kind, Placement, linear, looped

UNEVEN = Placement((0, 1, 1))


@given(placements(), st.data())
def test_a_dictionary_round_trips(placement, data):
    costs = data.draw(costs_for(placement.num_stages))
    again = Costs.from_dict(json.loads(json.dumps(costs.to_dict())), placement)
    assert again.to_dict() == costs.to_dict()


@given(placements())
def test_the_stages_of_a_rank_share_its_costs(placement):
    costs = Costs.of_ranks(placement, f=6, b=3, w=1.5, transfer=2, kept=0.5)
    for rank in range(placement.num_ranks):
        held = list(placement.stages_of(rank))
        assert costs.forward[held].sum() == pytest.approx(6)
        assert costs.backward_input[held].sum() == pytest.approx(3)
        assert costs.backward_weight[held].sum() == pytest.approx(1.5)
        assert costs.activation[held].sum() == pytest.approx(1)
        assert costs.activation_kept[held].sum() == pytest.approx(0.5)
    assert costs.transfer.tolist() == [2] * placement.num_stages
    assert stage_shares(UNEVEN).tolist() == [1, 0.5, 0.5]


def test_both_gradients_cost_the_sum():
    costs = Costs.uniform(2, f=1, b=2, w=4, activation=8, kept=0.25)
    assert costs.durations()[:4, 0].tolist() == [1, 2, 4, 6]
    assert costs.memory_changes()[:4, 1].tolist() == [8, -6, -2, -8]
    assert costs.memory_changes()[[Kind.F, Kind.B, Kind.W]].sum() == 0


def test_a_file_may_leave_out_what_has_a_default():
    costs = Costs.from_dict(
        {"forward": 1, "backward_input": [2, 3, 4], "backward_weight": 5}, UNEVEN
    )
    assert costs.forward.tolist() == [1, 1, 1]
    assert costs.transfer.tolist() == [0, 0, 0]
    assert costs.activation.tolist() == costs.activation_kept.tolist() == [1, 0.5, 0.5]


def test_transfers_may_be_given_for_each_boundary():
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    assert Costs.from_dict(times | {"transfer": [7, 8]}, UNEVEN).transfer.tolist() == [7, 8, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward": [1, 2]}, "costs: forward has 2 values for 3 stages"),
        ({"forward": [[1, 2, 3]]}, "costs: forward has 3 values for 3 stages"),
        ({"forward": [1, [2], 3]}, "costs: forward must be a number or a list of numbers"),
        ({"forward": "1"}, "costs: forward must be a number or a list of numbers: '1'"),
        ({"forward": True}, "costs: forward must be a number or a list of numbers: True"),
        ({"forward": None}, "costs: forward must be a number or a list of numbers: None"),
        ({"forward": {}}, "costs: forward must be a number or a list of numbers"),
        ({"forward": 10**400}, "costs: forward must be a number or a list of numbers"),
        ({"forward": -1}, "costs: forward must be between 0 and 1e100"),
        ({"forward": float("nan")}, "costs: forward must be between 0 and 1e100"),
        ({"transfer": 1e300}, "costs: transfer must be between 0 and 1e100"),
        ({"activation_kept": 2}, "costs: activation_kept must not exceed activation"),
        ({"backward": 1}, "costs: unknown key 'backward'; the keys are forward, "),
    ],
)
def test_a_wrong_value_is_named(change, message):
    right = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    with pytest.raises(UsageError) as error:
        Costs.from_dict(right | change, UNEVEN)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [field.name for field in fields(Costs)][:-1])
def test_no_cost_is_negative_or_not_finite(name, value):
    columns = {field.name: np.ones(3) for field in fields(Costs)[:-1]}
    columns[name][1] = value
    with pytest.raises(UsageError, match=f"^costs: {name} must be between 0 and 1e100: "):
        Costs(**columns)


def test_a_missing_key_is_named():
    with pytest.raises(UsageError, match="costs: key 'backward_weight' is missing"):
        Costs.from_dict({"forward": 1, "backward_input": 1}, linear(1))


def test_costs_cannot_change():
    costs = Costs.of_ranks(looped(2, 2))
    with pytest.raises(ValueError, match="read-only"):
        costs.forward[0] = 2
    assert np.all(costs.forward == 0.5)


def test_light_recompute_holds_less_and_takes_longer():
    costs = replace(
        Costs.uniform(2, f=1, b=2, w=1, activation=8, kept=0.75).with_bandwidth(2),
        activation_light=[2.0, 4.0],
        recompute_light=[0.5, 0.0],
        activation_input=[1.0, 6.0],
    )
    light = costs.light()
    assert light.activation.tolist() == light.activation_offloaded.tolist() == [6, 4]
    assert light.activation_kept.tolist() == [6, 4]
    assert light.activation_input.tolist() == [1, 4]
    assert light.backward_input.tolist() == [2.5, 2]
    assert light.offload.tolist() == light.load.tolist() == [3, 2]
    assert light.light().to_dict() == light.to_dict(), "what is gone is not gone twice"
