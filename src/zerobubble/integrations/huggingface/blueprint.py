"""Which part of a causal LM belongs to which layer? Embedding, blocks, and norm with head.

The blueprint is the whole model without memory for its parameters. Layers are copies of its parts.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.initialization import guard_torch_init_functions, no_init_weights

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.shell import Shell
from zerobubble.integrations.huggingface.source import one_line
from zerobubble.integrations.huggingface.values import check_config, value_named


class Blueprint:
    """A causal LM on the meta device, and how it is cut.

    Args:
        config: of the model.
        dtype: of its parameters.
        attn_implementation: of its attention; None for what transformers chooses.
        gradient_checkpointing: whether blocks compute their activations again in the backward.

    Attributes:
        model: the model.
        config: its configuration.
        blocks: its blocks, in order.
        num_layers: the blocks, the embedding and the head.

    Raises:
        UsageError: the model is none that can be cut; the message says what a stage needs.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.name = config.model_type
        self._refuse_unusual(config)
        self.model = self._build(config, dtype, attn_implementation)
        self.config = self.model.config
        self._find_parts()
        self.num_layers = len(self.blocks) + 2
        for block in self.blocks if gradient_checkpointing else ():
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    def unusual(self, why: str) -> UsageError:
        """Make the error of a model that cannot be cut."""
        return UsageError(
            f"cannot cut {self.name} into stages: {why}; stages need layers in order, one value "
            "that flows through them, and a loss: make them of the model's modules and pass them "
            "by hand, zb.Pipeline(layers, schedule, loss_fn)"
        )

    def _refuse_unusual(self, config: PreTrainedConfig) -> None:
        if config.is_encoder_decoder:
            raise self.unusual("it has an encoder and a decoder")
        if type(config) not in AutoModelForCausalLM._model_mapping:
            raise self.unusual("transformers has no causal LM of this type")
        check_config(config)
        if getattr(config, "quantization_config", None):
            raise UsageError(f"{self.name}: quantized parameters cannot be trained; load others")
        if getattr(config, "output_router_logits", False):
            raise UsageError(
                f"{self.name}: the router's auxiliary loss needs the routers of all stages in one "
                "place: set output_router_logits to false in the configuration"
            )

    def _build(self, config: PreTrainedConfig, dtype: torch.dtype, attention: str | None) -> Any:
        options = {} if attention is None else {"attn_implementation": attention}
        try:
            with torch.device("meta"), no_init_weights():
                model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
        except KeyError as error:
            named = value_named(config, str(error.args[0]))
            raise UsageError(
                f"cannot build {self.name}: transformers does not know {named}"
            ) from None
        except Exception as error:
            raise UsageError(f"cannot build {self.name}: {one_line(error)}") from None
        return model.train()

    def _find_parts(self) -> None:
        """Find the list of blocks, and by the model's own plan what comes before and after it."""
        prefix = self.model.base_model_prefix
        base = getattr(self.model, prefix, None)
        if base is None:
            raise self.unusual("it has no base model below a head")
        children = dict(base.named_children())
        plan = [name for name in self.config.base_model_pp_plan or {} if name in children]
        order = plan or list(children)
        lists = [name for name in order if isinstance(children[name], nn.ModuleList)]
        if len(lists) != 1 or not len(children[lists[0]]):
            raise self.unusual("it has not one list of blocks")
        self.blocks_path, self.blocks = f"{prefix}.{lists[0]}", children[lists[0]]
        place = order.index(lists[0])
        later = [n for n in order[place + 1 :] if plan or list(children[n].parameters())]
        self._embedding_parts = [f"{prefix}.{name}" for name in order[:place]]
        self._head_parts = [f"{prefix}.{name}" for name in later]
        self._head_parts += [name for name, _ in self.model.named_children() if name != prefix]

    def paths(self, layer: int) -> list[str]:
        """List the parts of a layer by their names in the model."""
        if layer == 0:
            return self._embedding_parts
        if layer == self.num_layers - 1:
            return self._head_parts
        return [f"{self.blocks_path}.{layer - 1}"]

    def names(self, layer: int) -> list[str]:
        """List the parameters and persistent buffers of a layer by their names in the model."""
        parts = ((path, self.model.get_submodule(path)) for path in self.paths(layer))
        return [f"{path}.{name}" for path, part in parts for name in part.state_dict()]

    def block(self, index: int) -> nn.Module:
        """Copy a block, without values, on the device that is torch's default now."""
        memo = {id(self.config): self.config}
        block: nn.Module = copy.deepcopy(self.blocks[index], memo)
        return block.to_empty(device=torch.get_default_device())

    def shell(self, *layers: int, device: torch.device | None = None) -> Shell:
        """Copy all but the blocks, with the parts of only some layers, and without values."""
        ends = {0, self.num_layers - 1}
        absent = [path for layer in ends - set(layers) for path in self.paths(layer)]
        shell = Shell(self.model, self.blocks_path, absent)
        shell.model.to_empty(device=device or torch.get_default_device())
        return shell

    @torch.no_grad()
    def initialize(self, module: nn.Module) -> None:
        """Give parameters and buffers their first values as the model's own code does.

        Those marked by ``_is_hf_initialized`` keep what they have.
        """
        with guard_torch_init_functions():
            module.apply(self.model._init_weights)

    def tied(self) -> list[tuple[str, ...]]:
        """List the groups of parameters with one value by their names in the model."""
        groups: dict[str, list[str]] = {}
        for name, source in self.model.all_tied_weights_keys.items():
            groups.setdefault(source, [source]).append(name)
        return [tuple(names) for names in groups.values()]
