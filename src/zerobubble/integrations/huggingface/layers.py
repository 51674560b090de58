"""What does a layer of a causal LM compute? The names in its state are those of the whole model."""

import operator
from typing import Any

import torch
from torch import Tensor, nn

from zerobubble.integrations.huggingface.blueprint import Blueprint
from zerobubble.integrations.huggingface.shell import Call, Shell, any_mask


class Surroundings:
    """Tells with which masks and rotary embeddings blocks are called; all layers share one.

    What the model's own code made of the last batch shape, mask and positions is kept, so that it
    runs once for the blocks of a stage, not for each of them.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._shells: dict[torch.device, Shell] = {}
        self._key: tuple[Any, ...] = ()
        self._inputs: tuple[Tensor | None, ...] = ()
        self._calls: list[Call] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Surroundings":
        """Copies of a layer share it too."""
        return self

    def of_block(self, index: int, hidden: Tensor, *inputs: Tensor | None) -> Call:
        """Give the call of a block for a hidden state, an attention mask and position ids."""
        like = (hidden.shape, hidden.dtype, hidden.device, torch.is_inference_mode_enabled())
        key = (*like, *(_version(tensor) for tensor in inputs))
        same = len(inputs) == len(self._inputs) and all(map(operator.is_, inputs, self._inputs))
        if not (same and key == self._key):
            self._calls = self._run(hidden, *inputs)
            self._key, self._inputs = key, inputs
        return self._calls[index]

    @torch.no_grad()
    def _run(self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[Call]:
        """Run the model's code around the blocks, for one channel instead of all."""
        if hidden.is_meta:  # masks may depend on values: those of the CPU have the same shapes
            on_cpu = torch.zeros(*hidden.shape[:-1], 1, dtype=hidden.dtype, device="cpu")
            return [call.to(hidden.device) for call in self._run(on_cpu, None, None)]
        embeds = hidden.new_zeros(*hidden.shape[:-1], 1)
        inputs = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions}
        with hidden.device:  # whatever is torch's default now
            return self._shell(hidden.device).calls(**inputs)

    def _shell(self, device: torch.device) -> Shell:
        if device not in self._shells:
            self._shells[device] = shell = self._blueprint.shell(device=device)
            self._blueprint.initialize(shell.model)
        return self._shells[device]


class Embedding(nn.Module):
    """First layer: token ids ``[B, T]`` to the hidden state ``[B, T, D]``, by the model's code."""

    def __init__(self, shell: Shell) -> None:
        super().__init__()
        _place(self, shell.model.base_model_prefix, shell.model.base_model)
        self._shell = shell

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Give what the model gives to its first block."""
        mask = any_mask(input_ids.device)
        inputs = {"input_ids": input_ids, "attention_mask": mask, "position_ids": position_ids}
        return self._shell.begin(**inputs).hidden


class Block(nn.Module):
    """A decoder block: the hidden state ``[B, T, D]`` to the next one.

    Args:
        path: of the block in the model.
        block: itself.
        index: of the block among all blocks.
        surroundings: tells how it is called.
    """

    def __init__(self, path: str, block: nn.Module, index: int, surroundings: Surroundings) -> None:
        super().__init__()
        _place(self, path, block)
        self._path, self._index, self._surroundings = path, index, surroundings

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Call the block as the model calls it.

        Args:
            hidden: ``[B, T, D]``.
            attention_mask: ``[B, T]``, 0 for padding.
            position_ids: ``[B, T]``; by default each sample is one text from its beginning.
        """
        call = self._surroundings.of_block(self._index, hidden, attention_mask, position_ids)
        output: Tensor = self.get_submodule(self._path)(hidden, *call.args, **call.keywords)
        return output


class Head(nn.Module):
    """Last layer: the hidden state ``[B, T, D]`` to logits ``[B, T, V]``, by the model's code."""

    def __init__(self, shell: Shell) -> None:
        super().__init__()
        for name, part in shell.model.named_children():
            _place(self, name, part)
        self._shell = shell

    def forward(self, hidden: Tensor) -> Tensor:
        """Give the logits that the model makes of what its last block gives."""
        return self._shell.end(hidden)


def _place(layer: nn.Module, path: str, part: nn.Module) -> None:
    """Put a part of a model into a layer below the name that it has in the model."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(layer, parent):
            layer.add_module(parent, nn.Module())
        layer = layer.get_submodule(parent)
    layer.add_module(name, part)


def _version(tensor: Tensor | None) -> int | None:
    """Give what changes when a tensor is written to."""
    return None if tensor is None or tensor.is_inference() else tensor._version
