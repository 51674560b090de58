"""Does a pipeline take a model and a plan as it takes layers and a schedule?"""

import random

import pytest
import torch
from torch import nn

from tests.strategies import random_schedule
from zerobubble import Costs, Pipeline, UsageError, build
from zerobubble.ir import Placement
from zerobubble.plan import Forecast, Plan
from zerobubble.runtime.layered import LayeredModel

FORECAST = Forecast(1.0, 1.0, 1.0, 0.0, 1.0, "rank 0, load", (0.0,), 0.0, (0.0,), (0.0,))
NAMES = ("first", "middle", "last")


def builders():
    return [lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 1)]


def layered(**changes):
    """Three layers under names of their own: ``layer``, then the number, then the rest."""
    given = {
        "name": "mine",
        "layers": builders(),
        "layer_names": NAMES,
        "loss_fn": nn.functional.mse_loss,
        "sample_batch": lambda size: (torch.ones(size, 3), torch.ones(size, 1)),
        "parameter_name": lambda number, name: f"model.{NAMES[number]}.{name}",
    }
    return LayeredModel(**given | changes)


def planned(layers_per_stage=(1, 2), layer_names=NAMES, num_stages=2):
    schedule = random_schedule(random.Random(0), Placement((0,) * num_stages), 2)
    costs = Costs.uniform(num_stages)
    return Plan("mine", layer_names, layers_per_stage, schedule, 2, costs, "post", None, FORECAST)


def test_a_model_brings_its_loss_and_its_names():
    pipe = Pipeline(layered(), build("1f1b", 1, 2))
    assert [name for name, _ in pipe.named_parameters()] == [
        f"model.{name}.{rest}" for name in NAMES for rest in ("weight", "bias")
    ]
    state = {name: value.clone() for name, value in pipe.state_dict().items()}
    plain = Pipeline(builders(), build("1f1b", 1, 2), nn.functional.mse_loss, seed=1)
    numbered = [f"{number}.{rest}" for number in range(3) for rest in ("weight", "bias")]
    assert list(plain.state_dict()) == numbered
    x, y = layered().sample_batch(4)
    loss = pipe.step(x, y)
    plain.load_state_dict(dict(zip(numbered, state.values(), strict=True)))
    assert plain.step(x, y).equal(loss)
    pipe.load_state_dict({name: torch.zeros_like(value) for name, value in state.items()})
    assert all(not parameter.any() for _, parameter in pipe.named_parameters())


@pytest.mark.parametrize("name", ["0.weight", "model.other.weight", "weight"])
def test_a_name_that_the_model_does_not_have_is_refused(name):
    pipe = Pipeline(layered(), build("1f1b", 1, 2))
    with pytest.raises(UsageError, match=rf"\['{name}'\] are unexpected"):
        pipe.load_state_dict(pipe.state_dict() | {name: torch.zeros(3, 3)})


def test_a_plan_brings_its_partition_and_schedule():
    for layers_per_stage in ((1, 2), (2, 1)):
        plan = planned(layers_per_stage)
        pipe = Pipeline(layered(), plan)
        assert [len(numbers) for numbers in pipe.layers_of_stage] == list(layers_per_stage)
        assert pipe.schedule is plan.schedule
        even = Pipeline(layered(), build("1f1b", 1, 2))
        x, y = layered().sample_batch(plan.batch_size)
        assert pipe.step(x, y).equal(even.step(x, y))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="the plan is for mine with 3 layers, but the model has 2"):
        Pipeline(builders()[:2], planned(), nn.functional.mse_loss)
    other = layered(layer_names=("first", "centre", "last"))
    with pytest.raises(UsageError, match=r"layer 1 of the plan is 'middle' of mine, .* 'centre'"):
        Pipeline(other, planned())
    with pytest.raises(UsageError, match="layers_per_stage is part of the plan"):
        Pipeline(layered(), planned(), layers_per_stage=(2, 1))
    with pytest.raises(UsageError, match="loss_fn is missing"):
        Pipeline(builders(), planned())
    with pytest.raises(UsageError, match=r"must be a Schedule, .*, or a Plan, not 'zb-h1'"):
        Pipeline(layered(), "zb-h1")
    with pytest.raises(UsageError, match="model mine: 2 layer names for 3 layers"):
        layered(layer_names=("first", "last"))


def test_a_plan_whose_parts_do_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"layers per stage \[1, 1\] add up to 2, .* 3 layers"):
        planned((1, 1))
    with pytest.raises(UsageError, match=r"layers per stage \[3\] must be 2 positive numbers"):
        planned((3,))
