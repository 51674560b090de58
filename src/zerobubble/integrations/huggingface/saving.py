"""How is the model of a pipeline written so that transformers loads it?"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.model import CausalLM
from zerobubble.runtime import Pipeline

_INDEX = "model.safetensors.index.json"


def save_pretrained(pipe: Pipeline, model: CausalLM, folder: str | Path) -> Path:
    """Write a checkpoint folder; every rank writes a file of its own, all call this together.

    ``AutoModelForCausalLM.from_pretrained`` and ``causal_lm`` load it. Tied parameters are written
    once. No rank holds more than its own part of the model.

    Args:
        pipe: the pipeline that trains the model.
        model: that ``causal_lm`` gave.
        folder: that all ranks reach. If it holds weights already, ``-2``, ``-3``, ... is added,
            since those of a trained model must not be lost, and no others overwritten.

    Returns:
        The folder that was written.

    Raises:
        UsageError: the folder cannot be written to.
    """
    rank, num_ranks = pipe.rank, pipe.schedule.num_ranks
    free = _without_weights(Path(folder)) if rank == 0 else None
    written: Path = pipe.transport.share_object(free)[0]
    _agree(pipe, _begin(written) if rank == 0 else "")
    part = _part_to_save(pipe.state_dict(), model)
    file = f"model-{rank + 1:05}-of-{num_ranks:05}.safetensors"
    problem = ""
    try:
        save_file(part, written / file, metadata={"format": "pt"})
    except (OSError, RuntimeError) as error:
        problem = f"cannot write {written / file}: {error}"
    _agree(pipe, problem)
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in part.items()}
    parts = pipe.transport.share_object((file, sizes))
    _agree(pipe, _end(written, model, parts) if rank == 0 else "")
    return written


def _without_weights(wanted: Path) -> Path:
    """Give the first folder of this name, or with a number behind it, that holds no weights."""
    number, folder = 1, wanted
    while any(folder.glob("*.safetensors*")):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _agree(pipe: Pipeline, problem: str) -> None:
    """Let all ranks go on, or end with the problem of one of them."""
    if wrong := [each for each in pipe.transport.share_object(problem) if each]:
        raise UsageError(problem or wrong[0])


def _begin(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot make the folder {folder}: {error.strerror}"
    return ""


def _part_to_save(state: dict[str, Any], model: CausalLM) -> dict[str, Tensor]:
    """Turn the state of a rank into the tensors of its file."""
    repeated = {name for group in model.blueprint.tied() for name in group[1:]}
    own = {name: value for name, value in state.items() if name not in repeated}
    converted = revert_weight_conversion(model.blueprint.model, own)
    return {name: value.detach().cpu().contiguous() for name, value in converted.items()}


def _end(folder: Path, model: CausalLM, parts: list[tuple[str, dict[str, int]]]) -> str:
    """Write what is about all files."""
    whole = model.blueprint.model
    config = whole.config
    config.architectures = [type(whole).__name__]
    config.dtype = whole.dtype
    index = {
        "metadata": {"total_size": sum(sum(sizes.values()) for _, sizes in parts)},
        "weight_map": {name: file for file, sizes in parts for name in sizes},
    }
    try:
        config.save_pretrained(folder)
        (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    except OSError as error:
        return f"cannot write to {folder}: {error.strerror}"
    return ""
