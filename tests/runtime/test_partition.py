"""Which layers does a stage get, and what do their initial values depend on?"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from zerobubble.errors import UsageError
from zerobubble.runtime import Pipeline
from zerobubble.runtime.partition import ANY, StageModule, build_stage, split_layers, takes
from zerobubble.schedules import build

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 40))
def test_an_even_split_loses_and_doubles_no_layer(num_layers, num_stages):
    if num_layers < num_stages:
        with pytest.raises(UsageError, match=f"{num_stages} stages need at least as many layers"):
            split_layers(num_layers, num_stages)
        return
    split = split_layers(num_layers, num_stages)
    assert [i for numbers in split for i in numbers] == list(range(num_layers))
    assert {len(numbers) for numbers in split} <= {num_layers // num_stages + d for d in (0, 1)}


def test_a_given_split_is_taken():
    assert split_layers(6, 3, (1, 4, 1)) == [range(0, 1), range(1, 5), range(5, 6)]


@pytest.mark.parametrize("counts", [(3, 3), (2, 2, 1), (6, 0, 0), (7, -2, 1), ()])
def test_a_split_that_does_not_add_up_is_refused(counts):
    with pytest.raises(UsageError, match="must be 3 positive numbers that add up to 6"):
        split_layers(6, 3, counts)


def linear():
    return nn.Linear(3, 3)


def values(stage):
    return {name: p.tolist() for name, p in stage.numbered_parameters().items()}


def test_initial_values_depend_on_seed_and_number_but_not_on_the_partition():
    layers = [linear] * 4
    whole = values(build_stage(layers, range(4), 0, CPU))
    parts = [values(build_stage(layers, numbers, 0, CPU)) for numbers in (range(1), range(1, 4))]
    assert parts[0] | parts[1] == whole
    assert len({str(value) for value in whole.values()}) == len(whole)
    other = values(build_stage(layers, range(4), 1, CPU))
    assert all(other[name] != value for name, value in whole.items())


def test_building_leaves_the_random_state_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_stage([linear], range(1), 0, CPU)
    assert torch.equal(torch.rand(3), expected)


def test_a_stage_builds_only_its_layers_and_runs_them_in_order():
    def never():
        raise AssertionError("this layer is another stage's")

    layers = [never, nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), never]
    stage = build_stage(layers, range(1, 4), 0, CPU)
    x = torch.randn(5, 2, 2)
    assert torch.equal(stage(x), layers[3](layers[2](layers[1](x))))
    assert list(stage.numbered_parameters()) == ["2.weight", "2.bias"]


def test_more_than_ten_layers_stay_in_order():
    stage = build_stage([linear] * 12, range(12), 0, CPU)
    numbers = [int(name.partition(".")[0]) for name in stage.numbered_parameters()]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("layer", ["text", 3, None, lambda: "no module"])
def test_a_layer_must_be_or_build_a_module(layer):
    with pytest.raises(UsageError, match="layer 1 must be a module or a callable"):
        build_stage([linear, layer], range(2), 0, CPU)


class Masked(nn.Module):
    def forward(self, x, mask, *, scale=1.0):
        return x * mask * scale


class Open(nn.Module):
    def forward(self, x, **keywords):
        return x + keywords["mask"] + len(keywords)


def test_a_layer_gets_the_keywords_that_its_forward_names():
    module = StageModule({0: nn.Linear(1, 1), 1: Masked(), 2: nn.Sequential(nn.Identity())})
    nn.init.ones_(module.layers["0"].weight)
    nn.init.zeros_(module.layers["0"].bias)
    assert module.keywords == {"mask", "scale"}
    value = module(torch.ones(1), mask=torch.tensor(2.0), scale=3.0, other=None)
    assert value.item() == 6.0
    assert not takes(module.keywords, "x")
    everything = StageModule({0: Open()})
    assert everything.keywords == {ANY}
    assert takes(everything.keywords, "anything")
    assert everything(torch.ones(1), mask=torch.tensor(2.0), other=None).item() == 5.0


def test_a_wrapped_layer_takes_what_the_layer_takes():
    assert StageModule({0: torch.compile(Masked())}).keywords == {"mask", "scale"}


@pytest.mark.parametrize("layers", [None, 5, "abc"])
def test_a_pipeline_of_no_layers_is_refused(layers):
    with pytest.raises(UsageError, match="layers must be a list of modules or builders, or a Lay"):
        Pipeline(layers, build("zb-h1", 1, 1), torch.nn.functional.mse_loss)
