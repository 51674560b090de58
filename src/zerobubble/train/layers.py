"""What are the layers of a model like? Found out without memory for their parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.partition import StageModule


def build_without_memory(model: LayeredModel, number: int) -> nn.Module:
    """Build a layer on the meta device; one that is a module already stays as it is."""
    layer = model.layers[number]
    if isinstance(layer, nn.Module):
        return layer
    with torch.device("meta"):
        return layer()


def parameter_counts(model: LayeredModel) -> list[int]:
    """Count the parameters of every layer; each copy of a tied one counts.

    >>> from zerobubble.train.config import ModelConfig
    >>> from zerobubble.train.model import reference_model
    >>> parameter_counts(reference_model(ModelConfig(layers=1, dim=8, heads=2, ffn_multiple=2)))
    [2048, 656, 2056]
    """
    layers = (build_without_memory(model, number) for number in range(len(model.layers)))
    return [sum(p.numel() for p in layer.parameters()) for layer in layers]


def stages_without_memory(
    model: LayeredModel, layers_of_stage: Sequence[range]
) -> list[tuple[StageModule, Tensor]]:
    """Build every stage on the meta device, each with what flows into it for one sample."""
    with torch.device("meta"):
        value = model.sample_batch(1)[0].to("meta")
        found = []
        for numbers in layers_of_stage:
            layers = {number: build_without_memory(model, number) for number in numbers}
            found.append((StageModule(layers), value))
            value = found[-1][0](value).detach().requires_grad_()
    return found
