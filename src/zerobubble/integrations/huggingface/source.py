"""Which configuration does a user mean: an object, a JSON file, a checkpoint folder, or a type?"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.values import check_given


def find_config(
    source: Any, values: Mapping[str, Any] | str | Path | None = None
) -> tuple[PreTrainedConfig, Path | None]:
    """Give a configuration of its own, and the folder if it comes from one.

    Args:
        source: a configuration, a checkpoint folder, a JSON file, or a model type such as
            ``qwen2`` with the defaults of its configuration.
        values: of the configuration, or a JSON file of them, in the place of the defaults of a
            model type; what has a configuration of its own takes none.

    Raises:
        UsageError: there is none, or it is malformed.

    >>> find_config("gpt2", {"n_layer": 2})[0].num_hidden_layers
    2
    """
    if values is not None and str(source) not in CONFIG_MAPPING:
        raise UsageError(f"values are for a model type such as qwen2, not for {str(source)[:80]}")
    if isinstance(source, PreTrainedConfig):
        return copy.deepcopy(source), None
    if not isinstance(source, str | Path):
        raise UsageError(
            f"a Hugging Face model is a configuration, a JSON file, a folder or a model type, not "
            f"a {type(source).__name__}"
        )
    if not str(source):
        raise UsageError("the name of the Hugging Face model is empty: write a path or a type")
    path = Path(source)
    if path.is_dir():
        return _from_values(read_json(path / "config.json")), path
    if path.suffix == ".json":
        return _from_values(read_json(path)), None
    if str(source) not in CONFIG_MAPPING:
        raise UsageError(
            f"{source} is no folder, no JSON file and no model type: write a path, or a type such "
            "as llama, qwen2, qwen3, mistral, mixtral, gpt2 or gemma"
        )
    if not isinstance(values, str | Path | Mapping | None):
        raise UsageError(
            f"values must be those of the configuration by name, or a JSON file, not a "
            f"{type(values).__name__}"
        )
    given = read_json(Path(values)) if isinstance(values, str | Path) else dict(values or {})
    if given.setdefault("model_type", str(source)) != source:
        raise UsageError(
            f"the values are those of model_type {given['model_type']!r}, not of {source}"
        )
    return _from_values(given), None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a UsageError that names the file if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a JSON object, not a {type(values).__name__}")
    return values


def _from_values(values: dict[str, Any]) -> PreTrainedConfig:
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UsageError(
            f"model_type {kind!r} is unknown to transformers: write a known one, such as llama, or "
            "pass the model's layers by hand: zb.Pipeline(layers, ...)"
        )
    rest = {name: value for name, value in values.items() if name != "model_type"}
    check_given(kind, rest, getattr(CONFIG_MAPPING[kind], "attribute_map", {}))
    try:
        return AutoConfig.for_model(kind, **rest)
    except Exception as error:
        raise UsageError(f"configuration of {kind}: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """Condense the message of an error of another library, without a stack of C++ code."""
    return " ".join(str(error).partition("\nException raised from ")[0].split())
