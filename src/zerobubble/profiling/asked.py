"""Can what a user asks for be profiled at all?"""

from collections.abc import Iterable, Sequence
from typing import Any

from zerobubble.errors import UsageError
from zerobubble.formats.reading import show_value
from zerobubble.runtime.layered import LayeredModel


def require_settings(
    model: LayeredModel, microbatch_sizes: Sequence[int], optimizer: str, validate: str
) -> None:
    """Refuse what no profile can be made for.

    Raises:
        UsageError: naming the setting.
    """
    if not isinstance(model, LayeredModel):
        raise UsageError(
            f"model is a {type(model).__name__}: give a LayeredModel, which has layers with names, "
            "a loss_fn and a sample_batch"
        )
    is_list = isinstance(microbatch_sizes, Iterable) and not isinstance(microbatch_sizes, str)
    if not (is_list and microbatch_sizes and all(map(is_count, microbatch_sizes))):
        raise UsageError(
            f"microbatch sizes {show_value(microbatch_sizes)}: give a list of whole numbers of at "
            "least 1"
        )
    if optimizer != "adamw":
        raise UsageError(f"optimizer {optimizer!r} cannot be profiled: use 'adamw'")
    if validate not in ("post", "sync"):
        raise UsageError(f"validate must be 'post' or 'sync', not {validate!r}")


def is_count(value: Any) -> bool:
    """Say whether a value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
