"""Which models with unequal layers does the planner meet? Seeded ones of three kinds."""

from dataclasses import dataclass, replace

import numpy as np

from zerobubble.plan.forecast import forecast
from zerobubble.profile import LayerCosts, Link, Profile
from zerobubble.schedules import build

NUM_MODELS = 20
MIB = 2.0**20


@dataclass(frozen=True)
class Case:
    """A model, the ranks that it is trained on, and their memory.

    Attributes:
        kind: what makes its layers unequal.
        profile: of its layers, for microbatches of one sample.
        num_ranks: p.
        num_microbatches: m.
        memory: bytes of every rank: what 1F1B needs with even layers.
    """

    kind: str
    profile: Profile
    num_ranks: int
    num_microbatches: int
    memory: float


def draw_case(seed: int) -> Case:
    """Draw one of the models."""
    random = np.random.default_rng(seed)
    num_ranks = int(random.integers(4, 9))
    num_microbatches = num_ranks * int(random.integers(2, 5))
    num_blocks = int(random.integers(4 * num_ranks, 6 * num_ranks + 1))
    kind, layers = KINDS[seed % len(KINDS)](random, num_blocks)
    names = tuple(name for name, _ in layers)
    profile = Profile(
        kind, "seeded", names, {1: tuple(costs for _, costs in layers)}, Link(0.02, 50 * MIB)
    )
    memory = memory_of_1f1b(profile, num_ranks, num_microbatches)
    return Case(kind, profile, num_ranks, num_microbatches, memory)


def even_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Give every stage as many layers, and one more to the first ones where they do not divide."""
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (stage < rest) for stage in range(num_stages))


def memory_of_1f1b(profile: Profile, num_ranks: int, num_microbatches: int) -> float:
    """Give what the rank of 1F1B with even layers holds that holds most."""
    schedule = build("1f1b", num_ranks, num_microbatches)
    lengths = even_layers(profile.num_layers, num_ranks)
    return max(forecast(profile, 1, lengths, schedule).peak_bytes)


Layers = list[tuple[str, LayerCosts]]


def _block(random: np.random.Generator, scale: float = 1.0) -> LayerCosts:
    """Give a transformer block whose backward is a little more than twice its forward."""
    time = scale * float(random.uniform(0.95, 1.05))
    return LayerCosts(
        forward_ms=time,
        backward_input_ms=1.1 * time,
        backward_weight_ms=0.9 * time,
        plain_forward_ms=time,
        plain_backward_ms=1.97 * time,
        optimizer_ms=0.05 * scale,
        activation_bytes=30 * MIB * scale,
        kept_bytes=16 * MIB * scale,
        input_bytes=2 * MIB,
        saved_input_bytes=2 * MIB,
        kept_input_bytes=2 * MIB,
        output_bytes=2 * MIB,
        parameter_bytes=24 * MIB * scale,
        gradient_bytes=24 * MIB * scale,
        optimizer_bytes=96 * MIB * scale,
    )


def _embedding(random: np.random.Generator) -> LayerCosts:
    """Give a layer of many parameters and little work."""
    block = _block(random, scale=float(random.uniform(1.5, 3)))
    return replace(
        block,
        forward_ms=0.1,
        backward_input_ms=0.0,
        backward_weight_ms=0.2,
        plain_forward_ms=0.1,
        plain_backward_ms=0.2,
        activation_bytes=0.0,
        kept_bytes=0.0,
        input_bytes=MIB / 64,
        saved_input_bytes=MIB / 64,
        kept_input_bytes=MIB / 64,
    )


def _heavy_ends(random: np.random.Generator, num_blocks: int) -> tuple[str, Layers]:
    blocks = [(f"block {i}", _block(random)) for i in range(num_blocks)]
    head = _block(random, scale=float(random.uniform(2, 5)))
    return "heavy head", [("embedding", _embedding(random)), *blocks, ("head", head)]


def _every_fourth(random: np.random.Generator, num_blocks: int) -> tuple[str, Layers]:
    scales = [3.0 if i % 4 == 3 else 1.0 for i in range(num_blocks)]
    blocks = [(f"block {i}", _block(random, scale)) for i, scale in enumerate(scales)]
    head = _block(random, scale=float(random.uniform(1, 2)))
    return "every fourth 3x", [("embedding", _embedding(random)), *blocks, ("head", head)]


def _encoder_in_front(random: np.random.Generator, num_blocks: int) -> tuple[str, Layers]:
    scale, count = float(random.uniform(0.2, 0.6)), num_blocks // 3
    encoder = [(f"encoder {i}", _block(random, scale)) for i in range(count)]
    blocks = [(f"block {i}", _block(random)) for i in range(num_blocks - count)]
    head = _block(random, scale=float(random.uniform(1, 3)))
    return "encoder in front", [*encoder, *blocks, ("head", head)]


KINDS = (_heavy_ends, _every_fourth, _encoder_in_front)
