"""What does a layer of a causal LM compute? The names in its state are those of the whole model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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
        same = len(inputs) == len(self._inputs) and all(map(_is, inputs, self._inputs))
        if not (same and key == self._key):
            self._calls = self._run(hidden, *inputs)
            self._key, self._inputs = key, inputs
        return self._calls[index]

    @torch.no_grad()
    def _run(self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[Call]:
        """Run the model's code on one channel; where there are no values, elsewhere and without."""
        device = torch.device("cpu") if hidden.is_meta else hidden.device
        inputs = {
            "inputs_embeds": torch.zeros(*hidden.shape[:-1], 1, dtype=hidden.dtype, device=device),
            "attention_mask": None if mask is None or mask.is_meta else mask,
            "position_ids": None if positions is None or positions.is_meta else positions,
        }
        calls = self._shell(device).calls(**inputs)
        return pytree.tree_map_only(Tensor, _to_meta, calls) if hidden.is_meta else calls

    def _shell(self, device: torch.device) -> Shell:
        if device not in self._shells:
            with torch.device("cpu"):
                shell = self._blueprint.shell()
                self._blueprint.initialize(shell.model)
            shell.model.to(device)
            self._shells[device] = shell
        return self._shells[device]
