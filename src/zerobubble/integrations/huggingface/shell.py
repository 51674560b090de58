"""What does the model's own code do before, around and after its blocks?

A shell is a copy of the model in which boundaries take the places of the blocks. Running it tells
what the first block is given, with which masks and rotary embeddings every block is called, and,
if the last boundary gives back a certain hidden state, what the model makes of that.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Call:
    """How a block is called, ``block(hidden, *args, **keywords)``, and what its boundary gave."""

    hidden: Tensor
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Tensor

    def to(self, device: torch.device) -> "Call":
        """Give the same call with all tensors on a device."""
        parts = (self.hidden, self.args, self.keywords, self.output)
        return Call(*pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), parts))


class Boundary(nn.Module):
    """Stands in for a block: notes its call and gives back its input, or what was laid ready."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        plain = {k: v for k, v in vars(block).items() if isinstance(v, str) and k[0] != "_"}
        vars(self).update(plain)  # some models choose a block's mask by such an attribute
        self.calls: list[Call] = []
        self.ready: Callable[[Tensor], Tensor] = _same

    def forward(self, hidden: Tensor, *args: Any, **keywords: Any) -> Tensor:
        """Note the call."""
        output = self.ready(hidden)
        self.calls.append(Call(hidden, args, keywords, output))
        return output


class Absent(nn.Module):
    """Stands in for a part of another layer: adds nothing to what comes in."""

    def forward(self, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Give back a hidden state, and for indices a zero."""
        return value if value.is_floating_point() else torch.zeros((), device=value.device)


class Shell:
    """A copy of a model without its blocks, and with only some of its other parts.

    Args:
        model: a causal LM without memory for its parameters.
        blocks: name in the model of the list of its blocks.
        absent: names in the model of the parts to leave out.
    """

    def __init__(self, model: Any, blocks: str, absent: Collection[str]) -> None:
        listed = model.get_submodule(blocks)
        self.boundaries = [Boundary(block) for block in listed]
        taken = {id(listed): nn.ModuleList(self.boundaries), id(model.config): model.config}
        left_out = {id(model.get_submodule(name)): Absent() for name in absent}
        self.model = copy.deepcopy(model, {**taken, **left_out})

    def begin(self, **inputs: Any) -> Call:
        """Run the base model, and give the call of the first block."""
        return self.calls(**inputs)[0]

    def calls(self, **inputs: Any) -> list[Call]:
        """Run the base model, and give the calls of all blocks in their order."""
        try:
            self.model.base_model(**inputs, use_cache=False)
            return [call for boundary in self.boundaries for call in boundary.calls]
        finally:
            self._forget()

    def end(self, hidden: Tensor) -> Tensor:
        """Give the logits that the model makes of what the last block gives."""
        self.boundaries[-1].ready = lambda _: hidden
        try:
            inputs = {"inputs_embeds": hidden.detach(), "attention_mask": any_mask(hidden.device)}
            logits: Tensor = self.model(**inputs, use_cache=False).logits
            return logits
        finally:
            self._forget()

    def _forget(self) -> None:
        for boundary in self.boundaries:
            boundary.calls, boundary.ready = [], _same


def any_mask(device: torch.device) -> Tensor:
    """Give a mask that the model takes as it is, for calls in which no block looks at it."""
    return torch.zeros(1, 1, 1, 1, device=device)


def _same(hidden: Tensor) -> Tensor:
    return hidden
