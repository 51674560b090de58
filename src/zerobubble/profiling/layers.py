"""Which layers of a model are alike, and what does each of them read?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from zerobubble.errors import UsageError
from zerobubble.profile import LayerCosts
from zerobubble.profiling.one_layer import Boundary, LayerRun
from zerobubble.runtime.batch import count_samples
from zerobubble.runtime.boundary import flatten
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.tied import layer_of_tied

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class Profiled(NamedTuple):
    """What is found out about a layer for one microbatch size."""

    costs: LayerCosts
    output: Boundary | None


LayerRuns = Mapping[int, LayerRun]
Run = Callable[[nn.Module, LayerRuns], Mapping[int, Profiled]]
Build = Callable[[int], nn.Module]


def profile_layers(
    model: LayeredModel,
    sizes: Sequence[int],
    build: Build,
    run: Run,
    place: Callable[[Tensor], Tensor],
) -> dict[int, tuple[LayerCosts, ...]]:
    """Go through the layers in order; build and run one at a time, and like ones once.

    Args:
        model: whose layers are profiled.
        sizes: of microbatches, in samples.
        build: gives the layer of a number, which nobody else holds.
        run: profiles it for every microbatch size.
        place: brings a tensor of the batch to where the layers are.

    Raises:
        UsageError: a layer cannot be run, or what it returns cannot travel; the message names it.
    """
    tied = _tied_names(model)
    boundaries, targets = _batches(model, sizes, place)
    known: dict[Any, Mapping[int, Profiled]] = {}
    costs: dict[int, list[LayerCosts]] = {size: [] for size in sizes}
    last = len(model.layers) - 1
    for number in range(last + 1):
        read = (number == 0, number == last, *(boundaries[size].signature for size in sizes))
        key, module = _kind(model, number, build, read, known)
        if module is not None:
            _require_tied(model, number, module, tied.get(number, []))
        if module is not None:
            tasks = {
                size: LayerRun(number, size, boundaries[size], *_loss(model, number, targets[size]))
                for size in sizes
            }
            with naming_the_layer(model, number):
                known[key] = run(module, tasks)
            del module
        for size, (layer_costs, output) in known[key].items():
            costs[size].append(layer_costs)
            if output is not None:
                boundaries[size] = output
    return {size: tuple(table) for size, table in costs.items()}


def _tied_names(model: LayeredModel) -> dict[int, list[str]]:
    """Collect the names of tied parameters by layer."""
    names: dict[int, list[str]] = {}
    for group in model.tied:
        if len(group) < 2:
            raise UsageError(f"tied parameters {group!r} of model {model.name}: name at least two")
        for name in group:
            number, of_layer = layer_of_tied(name, len(model.layers))
            names.setdefault(number, []).append(of_layer)
    return names


def _require_tied(
    model: LayeredModel, number: int, module: nn.Module, names: Sequence[str]
) -> None:
    """Refuse a tied parameter that a layer which is built does not have."""
    there = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name in names:
        if name not in there:
            raise UsageError(
                f"model {model.name}: tied parameter '{number}.{name}' does not exist; layer "
                f"{number} has {there}"
            )


def _loss(model: LayeredModel, number: int, target: Any) -> tuple[Any, ...]:
    return (model.loss_fn, target) if number == len(model.layers) - 1 else ()


def _kind(
    model: LayeredModel,
    number: int,
    build: Build,
    read: tuple[Any, ...],
    known: Mapping[Any, Any],
) -> tuple[Any, nn.Module | None]:
    """Name what the costs of a layer depend on, and build it if nothing is known about that.

    Layers given as one and the same builder, or of one kind, need not be built to be compared.
    """
    layer = model.layers[number]
    alike = model.kinds[number] if model.kinds else id(layer)
    if (alike, read) in known:
        return (alike, read), None
    with naming_the_layer(model, number):
        module = build(number)
    if model.kinds or (not isinstance(layer, nn.Module) and model.layers.count(layer) > 1):
        return (alike, read), module
    key = (structure(module), read)
    return key, None if key in known else module


def structure(module: nn.Module) -> str:
    """Describe classes, plain attributes and parameters of a module and all within it.

    >>> structure(nn.Linear(2, 3)) == structure(nn.Linear(2, 3))
    True
    >>> structure(nn.Dropout(0.1)) == structure(nn.Dropout(0.2))
    False
    """
    parts = [
        (name, type(each).__qualname__, _plain_attributes(each))
        for name, each in module.named_modules()
    ]
    tensors = [
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for named in (module.named_parameters(), module.named_buffers())
        for name, tensor in named
    ]
    return repr((parts, tensors))


def _plain_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    return sorted(
        (name, value)
        for name, value in vars(module).items()
        if all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(value))
        and not name.startswith("_")
    )


def _batches(
    model: LayeredModel, sizes: Sequence[int], place: Callable[[Tensor], Tensor]
) -> tuple[dict[int, Boundary], dict[int, Any]]:
    """Take a microbatch of every size from the model."""
    boundaries, targets = {}, {}
    for size in sizes:
        batch = model.sample_batch(size)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UsageError(
                f"model {model.name}: sample_batch({size}) must give input and target, not "
                f"{_in_words(batch)}"
            )
        x, y = batch
        if count_samples(x) != size:
            raise UsageError(
                f"model {model.name}: sample_batch({size}) gives {count_samples(x)} samples"
            )
        x, y = (pytree.tree_map_only(Tensor, lambda t: place(t.detach()), each) for each in (x, y))
        tensors, layout = flatten(x, f"model {model.name}: the input of sample_batch")
        boundaries[size], targets[size] = Boundary(tuple(tensors), layout), y
    return boundaries, targets


class naming_the_layer:
    """Turn whatever goes wrong within the block into one line that names the layer."""

    def __init__(self, model: LayeredModel, number: int) -> None:
        self._name = f"model {model.name}, layer {number} ({model.layer_names[number]})"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if isinstance(error, UsageError):
            raise UsageError(f"{self._name}: {error}") from None
        if isinstance(error, Exception):
            raise UsageError(f"{self._name} cannot be profiled: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Give the first line of a message, after which torch may print the stack of its C++ code.

    >>> first_line(RuntimeError("no storage\\nException raised from get at type.h:66"))
    'no storage'
    """
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].split())[:300] if lines else type(error).__name__


def _in_words(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
