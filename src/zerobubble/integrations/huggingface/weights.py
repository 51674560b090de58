"""Which tensors of a checkpoint folder make a parameter, and are they all there?

Names, shapes and dtypes come from the headers of the safetensors files and are checked for the
whole model before any layer is built; a layer then reads its own tensors only. Where a model keeps
its parameters in another form than its checkpoints (experts in one tensor), transformers converts.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.blueprint import Blueprint
from zerobubble.integrations.huggingface.source import one_line, read_json

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its name there, shape and dtype as the file's header has them."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"tensor {self.name} of {self.file}"

    def read(self) -> Tensor:
        """Read the tensor."""
        with safe_open(self.file, "pt") as opened:
            tensor: Tensor = opened.get_tensor(self.name)
        return tensor

    def without_values(self) -> Tensor:
        """Give a tensor of its shape that has no memory."""
        return torch.empty(self.shape, device="meta", dtype=_DTYPES[self.dtype])


@dataclass(frozen=True)
class Recipe:
    """Stored tensors that transformers turns into one or several parameters together."""

    first_name: str
    transform: Any
    sources: tuple[tuple[str, Stored], ...]

    def make(self, model: Any, give: Callable[[Stored], Tensor]) -> dict[str, Tensor]:
        """Make the parameters, by their names in the model."""
        transform = copy.deepcopy(self.transform)
        for pattern, stored in self.sources:
            transform.add_tensor(self.first_name, stored.name, pattern, give(stored))
        made = transform.convert(self.first_name, model=model, config=model.config)
        return {name: v[0] if isinstance(v, list) else v for name, v in made.items()}


class Checkpoint:
    """The weights of a folder, checked against a model.

    Args:
        folder: with ``model.safetensors``, or several files and an index of them.
        blueprint: of the model.

    Raises:
        UsageError: a file is absent or damaged, or a tensor is missing or has another shape or an
            unknown dtype; the message names both.
    """

    def __init__(self, folder: Path, blueprint: Blueprint) -> None:
        self._model = blueprint.model
        known = self._model.state_dict()
        self._made_by: dict[str, tuple[Recipe, str]] = {}
        for recipe in _recipes(_stored_tensors(folder), self._model):
            for name, tensor in _without_values(recipe, self._model).items():
                if name in known and tensor.shape != known[name].shape:
                    raise UsageError(
                        f"{recipe.sources[0][1]} gives {name} the shape {list(tensor.shape)}, but "
                        f"in the model it has {list(known[name].shape)}"
                    )
                self._made_by[name] = (recipe, name)
        for group in blueprint.tied():
            there = [self._made_by[name] for name in group if name in self._made_by]
            self._made_by |= {name: there[0] for name in group if there}
        parameters = [name for name, _ in self._model.named_parameters()]
        if missing := [name for name in parameters if name not in self._made_by]:
            more = f", nor {len(missing) - 1} others of its parameters" if missing[1:] else ""
            raise UsageError(f"{folder} has no tensor for {missing[0]} of the model{more}")

    @torch.no_grad()
    def load(self, layer: nn.Module) -> None:
        """Read the tensors of a layer into it, and mark them for ``Blueprint.initialize``."""
        made: dict[str, dict[str, Tensor]] = {}
        for name, target in layer.state_dict(keep_vars=True).items():
            if name not in self._made_by:
                continue
            recipe, there = self._made_by[name]
            if recipe.first_name not in made:
                made[recipe.first_name] = recipe.make(self._model, Stored.read)
            target.copy_(made[recipe.first_name][there])
            target._is_hf_initialized = True


def _recipes(tensors: Iterable[Stored], model: Any) -> list[Recipe]:
    """Find out by the names what each tensor is for; those that are for nothing are left."""
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    known, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, tuple[Any, list[tuple[str, Stored]]]] = {}
    for stored in sorted(tensors, key=lambda each: dot_natural_key(each.name)):
        name, pattern = rename_source_key(stored.name, renamings, converters, prefix, known)
        if name in known:
            transform = by_pattern[pattern] if pattern else WeightRenaming(stored.name, name)
            found.setdefault(name, (transform, []))[1].append((pattern or stored.name, stored))
    return [Recipe(name, how, tuple(sources)) for name, (how, sources) in found.items()]


def _without_values(recipe: Recipe, model: Any) -> dict[str, Tensor]:
    """Carry out a recipe for shapes only."""
    first, *others = (stored for _, stored in recipe.sources)
    for stored in (first, *others):
        if stored.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise UsageError(f"{stored} has dtype {stored.dtype}: parameters have {known}")
    try:
        return recipe.make(model, Stored.without_values)
    except Exception as error:
        what = f"{first} and {len(others)} others do not make {recipe.first_name}"
        raise UsageError(f"{what}: {one_line(error)}") from None


def _stored_tensors(folder: Path) -> list[Stored]:
    """List the tensors of a folder by the headers of its files."""
    index = folder / _INDEX
    if (folder / _ONE_FILE).exists():
        return list(_header(folder / _ONE_FILE).values())
    if not index.exists():
        raise UsageError(
            f"{folder} has neither {_ONE_FILE} nor {_INDEX}: give a folder with weights, or only "
            "its config.json for random ones"
        )
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict):
        raise UsageError(f"{index} has no weight_map")
    for name, file in file_of.items():
        if not isinstance(file, str):
            raise UsageError(f"{index}: weight_map of {name} must be the name of a file")
    headers = {file: _header(folder / file) for file in sorted(set(file_of.values()))}
    for name, file in file_of.items():
        if name not in headers[file]:
            raise UsageError(f"{folder / file} has no tensor {name}, which {index.name} puts there")
    return [headers[file][name] for name, file in file_of.items()]


def _header(file: Path) -> dict[str, Stored]:
    if not file.is_file():
        raise UsageError(f"{file} does not exist, though the folder's index names it")
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: Stored(file, name, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file} is damaged or incomplete: {one_line(error)}") from None
