"""Do all ranks measure one profile, and does it foresee the bytes of a real pipeline?"""

import pytest
import torch
from torch import nn

from tests.dist.harness import launch, values
from tests.profiling.models import QUICK, Returning, model_of
from zerobubble import Pipeline, build, simulate
from zerobubble.profile import stage_costs
from zerobubble.profile.file import dumps, loads
from zerobubble.profiling import measure
from zerobubble.runtime.partition import split_layers
from zerobubble.runtime.transport import Transport
from zerobubble.profiling.links import all_pairs, measure_links
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import reference_model

MODEL = reference_model(ModelConfig(layers=4, dim=32, heads=2, sequence=16, vocabulary=300))
SIZE = 2


def profile_of(rank, num_ranks, model):
    return dumps(measure(model, num_ranks=num_ranks, microbatch_sizes=[SIZE], **QUICK))


def activation_bytes(rank, schedule):
    pipe = Pipeline(MODEL.layers, schedule, MODEL.loss_fn)
    pipe.ledger.is_on = True
    pipe.step(*MODEL.sample_batch(SIZE * schedule.num_microbatches))
    return max(pipe.ledger.activation_bytes)


@pytest.fixture(scope="module")
def profile():
    texts = values(launch(profile_of, 2, 2, MODEL))
    assert len(set(texts)) == 1, "all ranks have the same"
    return loads(texts[0], "it")


def test_ranks_measure_what_one_cannot(profile):
    assert 0 < profile.link.transfer_ms(2**20) < float("inf")
    assert set(profile.links) <= {(0, 1)}
    assert profile.step_overhead_ms >= 0
    assert all(layer.forward_ms > 0 for layer in profile.at(SIZE))


@pytest.mark.parametrize("name", ["zb-h1", "1f1b", "zb-v"])
def test_activations_are_those_that_a_pipeline_counts(profile, name):
    """A stage holds its input as well, which the ledger counts among what travels."""
    schedule = build(name, num_ranks=2, num_microbatches=6)
    stages = split_layers(profile.num_layers, schedule.num_stages)
    costs = stage_costs(profile, SIZE, stages, schedule.placement)
    expected = simulate(schedule, costs).peak_memory_per_rank
    counted = values(launch(activation_bytes, 2, schedule))
    for simulated, real in zip(expected, counted, strict=True):
        assert real == pytest.approx(simulated, rel=0.1)


def links_of(rank, num_ranks):
    transport = Transport(torch.device("cpu"), num_ranks, all_pairs(num_ranks))
    return measure_links(transport)


def test_links_between_all_ranks_are_known_to_each():
    found = values(launch(links_of, 3, 3))
    assert found[0] == found[1] == found[2]
    link, _ = found[0]
    assert link.latency_ms >= 0
    assert link.bytes_per_ms > 0


def test_a_layer_that_cannot_be_run_ends_all_ranks_alike():
    outcomes = launch(profile_of, 2, 2, model_of(Returning, nn.Tanh))
    for outcome in outcomes:
        assert outcome.error is not None
        kind, message = outcome.error
        assert kind == "UsageError"
        assert "layer 0 (layer 0): the output of stage 0 holds a set" in message
