"""How does a causal LM become a LayeredModel?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.blueprint import Blueprint
from zerobubble.integrations.huggingface.form import check_form
from zerobubble.integrations.huggingface.layers import Block, Embedding, Head, Surroundings
from zerobubble.integrations.huggingface.loss import next_token_loss
from zerobubble.integrations.huggingface.source import find_config
from zerobubble.integrations.huggingface.weights import Checkpoint
from zerobubble.runtime.layered import LayeredModel


@dataclass(frozen=True)
class CausalLM(LayeredModel):
    """A causal LM of Hugging Face transformers as layers.

    Attributes:
        blueprint: the model without memory for its parameters, and how it is cut.
        folder: that its weights come from; None if they are drawn at random.
    """

    blueprint: Blueprint = field(kw_only=True)
    folder: Path | None = None

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return int(self.blueprint.config.vocab_size)


def causal_lm(
    source: Any,
    *,
    sequence: int,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str | None = None,
    gradient_checkpointing: bool = False,
    values: Mapping[str, Any] | str | Path | None = None,
) -> CausalLM:
    """Cut a causal LM into an embedding, its blocks, and its norm with the head.

    Nothing is built but the model on the meta device: each rank builds its own layers, and reads
    only their tensors if ``source`` is a folder. The layers' parameters have the names of the
    unpipelined model. The input of a step are token ids ``[B, T]``, its target the labels that
    ``next_token_loss`` takes, already shifted; the keywords ``attention_mask`` and
    ``position_ids``, ``[B, T]``, have their meaning in transformers.

    Args:
        source: a configuration of transformers, a JSON file of one, a checkpoint folder, or a
            model type such as ``qwen2``.
        sequence: number of tokens in a sample of ``sample_batch``; other batches may have others.
        dtype: of the parameters.
        attn_implementation: as in transformers, which chooses if it is None.
        gradient_checkpointing: whether blocks compute their activations again in the backward.
        values: of the configuration, or a JSON file of them, if ``source`` is a model type.

    Raises:
        UsageError: the model cannot be cut into stages, or the folder's weights do not fit it.

    >>> sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...              num_attention_heads=2, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    >>> model = causal_lm("llama", sequence=8, values=sizes)
    >>> model.layer_names
    ('embedding', 'block 0', 'block 1', 'head')
    >>> list(model.layers[3]().state_dict())
    ['model.norm.weight', 'lm_head.weight']
    """
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise UsageError(f"sequence must be a whole number of tokens, not {sequence!r}")
    config, folder = find_config(source, values)
    limit = getattr(config, "max_position_embeddings", None) or sequence
    if not 1 <= sequence <= limit:
        raise UsageError(
            f"a sequence must have 1 to {limit} tokens, the max_position_embeddings of "
            f"{config.model_type}, not {sequence}"
        )
    blueprint = Blueprint(config, dtype, attn_implementation, gradient_checkpointing)
    check_form(blueprint)
    checkpoint = Checkpoint(folder, blueprint) if folder else None
    build = partial(_build_layer, blueprint, Surroundings(blueprint), checkpoint)
    numbers = range(blueprint.num_layers)
    return CausalLM(
        name=blueprint.name,
        layers=[partial(build, number) for number in numbers],
        layer_names=("embedding", *(f"block {i}" for i in range(len(blueprint.blocks))), "head"),
        loss_fn=next_token_loss,
        sample_batch=partial(_sample_batch, int(config.vocab_size), sequence),
        tied=tuple(_tied(blueprint)),
        parameter_name=_name_in_model,
        kinds=_kinds(blueprint),
        blueprint=blueprint,
        folder=folder,
    )


def _build_layer(
    blueprint: Blueprint, surroundings: Surroundings, checkpoint: Checkpoint | None, number: int
) -> nn.Module:
    """Build a layer on the device that is torch's default now."""
    layer: nn.Module
    if number == 0:
        layer = Embedding(blueprint.shell(0))
    elif number == blueprint.num_layers - 1:
        layer = Head(blueprint.shell(number))
    else:
        index = number - 1
        layer = Block(blueprint.paths(number)[0], blueprint.block(index), index, surroundings)
    if checkpoint and torch.get_default_device().type != "meta":
        checkpoint.load(layer)
    blueprint.initialize(layer)
    return layer


def _name_in_model(layer: int, name: str) -> str:
    """Give the name of a parameter, which is that in the model already."""
    return name


def _tied(blueprint: Blueprint) -> list[tuple[str, ...]]:
    layer_of = {name: i for i in range(blueprint.num_layers) for name in blueprint.names(i)}
    return [tuple(f"{layer_of[name]}.{name}" for name in group) for group in blueprint.tied()]


def _kinds(blueprint: Blueprint) -> tuple[str, ...]:
    """Name what the costs of each layer follow from: its parameters, and how a block attends."""
    state = blueprint.model.state_dict()
    types = getattr(blueprint.config, "layer_types", None) or [""] * len(blueprint.blocks)
    of_blocks: dict[Any, str] = {}
    kinds = []
    for number, kind in enumerate(types, start=1):
        path = blueprint.paths(number)[0]
        names = blueprint.names(number)
        shapes = tuple((name.removeprefix(path), state[name].shape) for name in names)
        kinds.append(of_blocks.setdefault((kind, shapes), f"block kind {len(of_blocks)}"))
    return ("embedding", *kinds, "head")


def _sample_batch(vocabulary: int, sequence: int, num_samples: int) -> tuple[Tensor, Tensor]:
    """Draw tokens, so that experts get about as many as in training."""
    generator = torch.Generator("cpu").manual_seed(0)
    size = (num_samples, sequence + 1)
    tokens = torch.randint(vocabulary, size, generator=generator, device="cpu")
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
