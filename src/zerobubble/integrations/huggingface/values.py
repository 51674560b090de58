"""Can a model have the sizes that its configuration names?"""

from collections.abc import Mapping
from typing import Any

from zerobubble.errors import UsageError

_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


def check_given(kind: str, values: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
    """Refuse sizes below 1 among values, before anything is computed with them.

    Args:
        kind: of the model.
        values: by name.
        aliases: the names that this kind of model has for some of them, by the usual name.

    Raises:
        UsageError: naming the value.
    """
    for name in _COUNTS:
        for known in (name, aliases.get(name, name)):
            value = values.get(known)
            if isinstance(value, int) and value < 1:
                raise UsageError(f"configuration of {kind}: {known} is {value}: write 1 or more")


def check_config(config: Any) -> None:
    """Refuse sizes that do not fit each other, which the code of the model finds too late.

    Raises:
        UsageError: naming the values.
    """
    kind = config.model_type
    sizes: dict[str, Any] = {name: getattr(config, name, None) for name in _COUNTS}
    check_given(kind, sizes, {})
    chosen = getattr(config, "num_experts_per_tok", None)
    for name in ("num_local_experts", "num_experts"):
        experts = getattr(config, name, None)
        if isinstance(chosen, int) and isinstance(experts, int) and 0 < experts < chosen:
            raise UsageError(
                f"configuration of {kind}: num_experts_per_tok is {chosen}, but {name} only "
                f"{experts}"
            )
    if getattr(config, "kv_lora_rank", None):
        return
    hidden, heads, groups = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise UsageError(
            f"configuration of {kind}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {groups}: change one"
        )
    turns = getattr(config, "rope_parameters", None) and not _is_partial(config)
    if turns and not sizes["head_dim"] and isinstance(heads, int) and (hidden // heads) % 2:
        raise UsageError(
            f"configuration of {kind}: hidden_size {hidden} gives {heads} num_attention_heads "
            f"{hidden // heads} channels each, but rotary positions need an even number"
        )


def _is_partial(config: Any) -> bool:
    """Say whether only some channels turn with the position."""
    parameters = config.rope_parameters
    share = getattr(config, "partial_rotary_factor", None)
    if isinstance(parameters, dict):
        share = share or parameters.get("partial_rotary_factor")
    return share not in (None, 1, 1.0)


def value_named(config: Any, key: str) -> str:
    """Name the values of a configuration that are a key which transformers does not know.

    >>> from transformers import CONFIG_MAPPING
    >>> value_named(CONFIG_MAPPING["gpt2"](activation_function="nope"), "nope")
    "activation_function 'nope'"
    """
    names = [name for name, value in config.to_dict().items() if value == key]
    return f"{' and '.join(names)} {key!r}".strip()
