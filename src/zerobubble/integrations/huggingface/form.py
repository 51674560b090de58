"""Has a model's code the form that stages need?

This is found out by running it around its blocks: one hidden state flows from block to block, each
is called once and in order, and gets nothing else that follows from parameters of other layers.
"""

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.blueprint import Blueprint
from zerobubble.integrations.huggingface.shell import any_mask
from zerobubble.integrations.huggingface.source import one_line


def check_form(blueprint: Blueprint) -> None:
    """Refuse a model whose code has another form, without memory for its parameters.

    Raises:
        UsageError: it has; the message says how layers are passed by hand.
    """
    known = {name for layer in range(blueprint.num_layers) for name in blueprint.names(layer)}
    if others := [name for name in blueprint.model.state_dict() if name not in known]:
        raise blueprint.unusual(f"{others[0]} belongs to no layer")
    for group in blueprint.tied():
        if not known.issuperset(group):
            raise blueprint.unusual(f"{group[0]} is tied to what belongs to no layer")
    try:
        with torch.device("cpu"):
            _check_blocks(blueprint)
        _check_ends(blueprint)
    except UsageError:
        raise
    except Exception as error:
        why = f"its code runs only as a whole ({one_line(error)})"
        raise blueprint.unusual(why) from None


def _check_blocks(blueprint: Blueprint) -> None:
    shell = blueprint.shell(device=torch.device("cpu"))
    blueprint.initialize(shell.model)
    for boundary in shell.boundaries:
        boundary.ready = torch.clone
    embeds = torch.zeros(1, 2, 1, dtype=blueprint.model.dtype, requires_grad=True)
    calls = shell.calls(inputs_embeds=embeds)
    following = zip(calls[1:], calls[:-1], strict=True)
    if len(calls) != len(blueprint.blocks) or any(
        call.hidden is not before.output for call, before in following
    ):
        raise blueprint.unusual("what flows from block to block is more than one hidden state")
    for call in calls:
        leaves = pytree.tree_leaves((call.args, call.keywords))
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            raise blueprint.unusual("its blocks share more than masks and positions")


def _check_ends(blueprint: Blueprint) -> None:
    meta = torch.device("meta")
    ids = torch.zeros(1, 2, dtype=torch.int64, device=meta)
    first, last = (blueprint.shell(n, device=meta) for n in (0, blueprint.num_layers - 1))
    hidden = first.begin(input_ids=ids, attention_mask=any_mask(meta)).hidden
    logits = last.end(hidden)
    if hidden.shape[:-1] != ids.shape or logits.shape[:-1] != ids.shape:
        raise blueprint.unusual(f"it maps two tokens to logits of shape {list(logits.shape)}")
