"""What do the stages cost when a model is cut into them?"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from zerobubble.costs import Costs
from zerobubble.ir import Placement
from zerobubble.profile.data import LayerCosts, Profile


def stage_costs(
    profile: Profile,
    microbatch_size: int,
    layers_of_stage: Sequence[range],
    placement: Placement,
    split_stages: Collection[int] | None = None,
) -> Costs:
    """Give the times of every stage in ms, and its activations in bytes.

    Layers are summed. The activation of a stage is what its layers save, and its input, which it
    holds until B. Within a stage an input counts only if the layer saves it. Offload moves all but
    the input of the stage, over the link to the host; recompute takes as long as F.

    Args:
        profile: of the layers.
        microbatch_size: in samples.
        layers_of_stage: consecutive layers of every stage.
        placement: rank of every stage, which says over which link its output travels.
        split_stages: those whose W runs apart from B; all of them by default. The others have the
            times of a plain backward, shared between B and W as in a split one.

    Raises:
        UsageError: the profile does not have this microbatch size.

    >>> from zerobubble.ir import linear
    >>> layer = LayerCosts(2, 3, 1, activation_bytes=8, input_bytes=4, saved_input_bytes=4)
    >>> profile = Profile("mine", "cpu", ("a", "b"), {1: (layer, layer)})
    >>> stage_costs(profile, 1, [range(0, 2)], linear(1)).activation.tolist()
    [24.0]
    """
    table = profile.at(microbatch_size)
    stages = [table[numbers.start : numbers.stop] for numbers in layers_of_stage]
    is_split = [split_stages is None or s in split_stages for s in range(len(stages))]
    f, b, w = np.array([_times(*each) for each in zip(stages, is_split, strict=True)]).T
    activation = np.array([_activation(stage) for stage in stages])
    inputs = np.array([stage[0].input_bytes for stage in stages])
    copy = np.array([profile.host.transfer_ms(each) for each in activation - inputs])
    return Costs(
        f,
        b,
        w,
        np.array([_transfer(profile, stages, s, placement) for s in range(len(stages))]),
        activation,
        np.array([_kept(stage) for stage in stages]),
        offload=copy,
        load=copy,
        activation_offloaded=activation - inputs,
        activation_input=inputs,
    )


class StageBytes(NamedTuple):
    """Bytes that a stage holds all the time."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def stage_bytes(
    profile: Profile, microbatch_size: int, layers_of_stage: Sequence[range]
) -> list[StageBytes]:
    """Give the bytes of parameters, gradients and optimizer state of every stage."""
    table = profile.at(microbatch_size)
    return [
        StageBytes(
            *(
                sum(getattr(layer, name) for layer in table[numbers.start : numbers.stop])
                for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
            )
        )
        for numbers in layers_of_stage
    ]


def _times(layers: Sequence[LayerCosts], is_split: bool) -> tuple[float, float, float]:
    f, b, w = (
        sum(getattr(layer, name) for layer in layers)
        for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
    )
    if is_split:
        return f, b, w
    backward = sum(layer.plain_backward_ms for layer in layers)
    share = b / (b + w) if b + w else 0.5
    forward = sum(layer.plain_forward_ms for layer in layers)
    return forward, backward * share, backward * (1 - share)


def _transfer(
    profile: Profile, stages: Sequence[Sequence[LayerCosts]], stage: int, placement: Placement
) -> float:
    holders = placement.stage_to_rank
    if stage + 1 == len(stages) or holders[stage] == holders[stage + 1]:
        return 0.0
    link = profile.link_between(holders[stage], holders[stage + 1])
    return link.transfer_ms(stages[stage][-1].output_bytes)


def _activation(layers: Sequence[LayerCosts]) -> float:
    """Sum what F holds; output gradients that wait for W can be more, as after an embedding."""
    held = (
        sum(layer.activation_bytes for layer in layers)
        + layers[0].input_bytes
        + sum(layer.saved_input_bytes for layer in layers[1:])
    )
    return max(held, _kept(layers))


def _kept(layers: Sequence[LayerCosts]) -> float:
    return sum(layer.kept_bytes + layer.kept_input_bytes for layer in layers)
