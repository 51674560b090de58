"""Which model does a run train: the reference transformer, or one of Hugging Face?"""

from dataclasses import fields
from pathlib import Path

from zerobubble.errors import UsageError
from zerobubble.runtime.layered import LayeredModel
from zerobubble.train.config import VOCABULARY, ModelConfig
from zerobubble.train.data import Encode
from zerobubble.train.model import reference_model

_PREFIX = "hf:"


def find_model(spec: str, config_path: str, model: ModelConfig) -> LayeredModel:
    """Give the model that a user asks for; nothing of it is built but on the meta device.

    Args:
        spec: nothing for the reference transformer, ``hf:qwen2`` for a model type of transformers,
            ``hf:small.json`` or ``small.json`` for a configuration, or a checkpoint folder.
        config_path: JSON file with values of the configuration of a model type; else empty.
        model: shape of the reference transformer, and length of the sequences of any model.

    Raises:
        UsageError: there is no such model, it cannot be cut, or its weights do not fit it.

    >>> find_model("", "", ModelConfig(layers=4)).layer_names[-2:]
    ('block 3', 'head')
    """
    if not spec:
        if config_path:
            raise UsageError(
                f"--config {config_path} is the configuration of a Hugging Face model: say of "
                "which type, like --model hf:qwen2"
            )
        return reference_model(model)
    _refuse_another_shape(spec, model)
    name = spec.removeprefix(_PREFIX)
    if name == spec and not Path(name).exists():
        raise UsageError(
            f"--model {spec}: there is no such folder or file; a model type is written {_PREFIX}"
            f"{spec}"
        )
    if config_path and Path(name).exists():
        raise UsageError(f"--model {spec} has a configuration of its own: leave --config out")
    from zerobubble.integrations.huggingface import causal_lm

    return causal_lm(name, sequence=model.sequence, values=config_path or None)


def _refuse_another_shape(spec: str, model: ModelConfig) -> None:
    for each in fields(model):
        is_shape = each.name not in ("source", "source_config", "sequence")
        if is_shape and getattr(model, each.name) != each.default:
            raise UsageError(
                f"{each.name} is of the reference transformer, but {spec} has its own "
                "configuration: leave it out"
            )


def find_encoding(model: LayeredModel) -> Encode | None:
    """Give what turns text into the tokens of a model; None where bytes are the tokens.

    A checkpoint folder with a ``tokenizer.json`` has its own; any other model reads bytes.

    Raises:
        UsageError: the model has fewer tokens than there are bytes or tokens of the tokenizer.
    """
    vocabulary = getattr(model, "vocabulary", VOCABULARY)
    folder = getattr(model, "folder", None)
    if folder and (folder / "tokenizer.json").exists():
        from zerobubble.integrations.huggingface import read_tokenizer

        return read_tokenizer(folder / "tokenizer.json", vocabulary)
    if vocabulary < VOCABULARY:
        raise UsageError(
            f"{model.name} trains on bytes and needs a vocabulary of {VOCABULARY}, not "
            f"{vocabulary}: set vocab_size, or give a folder with a tokenizer.json"
        )
    return None
