"""What would every layer of a model cost on a device that is not here?"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zerobubble.autograd import native
from zerobubble.errors import UsageError
from zerobubble.profile import LayerCosts, Link, Profile
from zerobubble.profiling.asked import require_settings
from zerobubble.profiling.device_spec import GIGA, DeviceSpec
from zerobubble.profiling.layers import LayerRuns, Profiled, profile_layers
from zerobubble.profiling.one_layer import LayerRun, LayerStage, count_held
from zerobubble.profiling.roofline import FusedAttention, Roofline, Work, kernel_ms
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.partition import Layer, build_layer

_META = torch.device("meta")


def estimate(
    model: LayeredModel,
    device: DeviceSpec,
    microbatch_sizes: Sequence[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    optimizer: str = "adamw",
    validate: str = "post",
) -> Profile:
    """Estimate the costs of every layer without memory or time for tensors.

    Layers are built on the meta device, one at a time, and run as stages of the runtime. Their
    kernels take the time of a roofline (:mod:`zerobubble.profiling.roofline`), attention is fused.
    Activations are counted as by the runtime's ledger. All parameters have ``dtype``. AdamW keeps
    two float32 values for each parameter, and below float32 a float32 master copy.

    Args:
        model: whose layers are run.
        device: its rates.
        microbatch_sizes: in samples.
        dtype: of parameters, inputs and gradients.
        optimizer: only ``adamw``.
        validate: ``post`` or ``sync``, as for ``Pipeline.optimizer``.

    Raises:
        UsageError: a layer needs values, not only shapes, or returns what cannot travel.

    >>> from zerobubble.profiling import H100
    >>> layers = [nn.Linear(1024, 1024), nn.Linear(1024, 1024, bias=False)]
    >>> def sample(n):
    ...     return torch.empty(n, 1024), torch.empty(n, 1024)
    >>> loss = nn.functional.mse_loss
    >>> model = LayeredModel("mine", layers, ("first", "second"), loss, sample)
    >>> estimate(model, H100, [8]).at(8)[1].parameter_bytes / 1024**2
    2.0
    """
    require_settings(model, microbatch_sizes, optimizer, validate)

    def run(module: nn.Module, tasks: LayerRuns) -> Mapping[int, Profiled]:
        weights = _weight_costs(module, device, validate)
        return {size: _profiled(module, task, device, weights) for size, task in tasks.items()}

    for what, value, kind in (("device", device, DeviceSpec), ("dtype", dtype, torch.dtype)):
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be a {kind.__name__}, not {value!r}")
    sizes = sorted(set(microbatch_sizes))
    with FusedAttention(), native.in_python(), torch.enable_grad():
        tables = profile_layers(
            model,
            sizes,
            build=lambda number: _build(model.layers[number], number, dtype),
            run=run,
            place=lambda tensor: _on_meta(tensor, dtype),
        )
    per_ms = GIGA * device.link_efficiency / 1e3
    return Profile(
        model=model.name,
        device=f"{device.name} (estimated, {str(dtype).removeprefix('torch.')})",
        layer_names=model.layer_names,
        layers=tables,
        link=Link(device.link_latency_us / 1e3, device.link_gb_per_s * per_ms),
        host=Link(device.link_latency_us / 1e3, device.host_gb_per_s * per_ms),
        memory_bytes=device.memory_gb * GIGA,
    )


def _on_meta(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Make a tensor without values of the same strides: what is no block gets copied by ops."""
    kept = dtype if tensor.is_floating_point() else tensor.dtype
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kept, device=_META)


def _build(layer: Layer, number: int, dtype: torch.dtype) -> nn.Module:
    """Build a layer on the meta device, or copy the one that is given to it, without its values."""
    if isinstance(layer, nn.Module):
        module = layer
    else:
        with _META:
            module = build_layer(layer, number, seed=0)
    tensors = chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, {id(each): _without_values(each, dtype) for each in tensors})


def _without_values(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    moved = _on_meta(tensor.detach(), dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved


def _profiled(
    module: nn.Module, task: LayerRun, device: DeviceSpec, weights: LayerCosts
) -> Profiled:
    held = count_held(module, task)
    split = layer_work(module, task, device, splits_backward=True)
    plain = layer_work(module, task, device, splits_backward=False)
    costs = replace(
        weights,
        forward_ms=split.forward.ms,
        backward_input_ms=split.backward_input.ms,
        backward_weight_ms=split.backward_weight.ms,
        plain_forward_ms=plain.forward.ms,
        plain_backward_ms=plain.backward_input.ms,
        **held.as_costs(task),
    )
    return Profiled(costs, held.output)


class LayerWork(NamedTuple):
    """The work of the ops of a layer; where the backward is not split, B is all of it."""

    forward: Work
    backward_input: Work
    backward_weight: Work


def layer_work(
    module: nn.Module, task: LayerRun, device: DeviceSpec, *, splits_backward: bool
) -> LayerWork:
    """Run a microbatch as all but the first of a step do, whose gradients are added to others."""
    run = LayerStage(module, task, splits_backward=splits_backward)
    run.begin_gradients()
    run.give_input(0, task.boundary.copy())
    with Roofline(device) as roofline:
        run.stage.forward(0)
        forward = roofline.take()
    run.give_gradients(0, run.take_output(0)[1])
    with roofline:
        run.stage.backward_input(0)
        backward_input = roofline.take()
    run.end(0)
    with roofline:
        if splits_backward:
            run.stage.backward_weight(0)
    run.drop_gradients()
    return LayerWork(forward, backward_input, roofline.take())


def _weight_costs(module: nn.Module, device: DeviceSpec, validate: str) -> LayerCosts:
    """Give the bytes of the weights and the time of the optimizer, whose kernels read them once."""
    parameters = list(module.parameters())
    trained = [each for each in parameters if each.requires_grad]
    plain = sum(each.numel() * _plain_step_bytes(each.element_size()) for each in trained)
    guess = sum(each.numel() * _GUESS_BYTES for each in trained) if validate == "post" else 0
    times = (
        kernel_ms(device, 0, moved, torch.float32) if trained else 0.0
        for moved in (plain + guess, plain)
    )
    optimizer_ms, plain_optimizer_ms = times
    return LayerCosts(
        optimizer_ms=optimizer_ms,
        plain_optimizer_ms=plain_optimizer_ms,
        parameter_bytes=sum(each.nbytes for each in chain(parameters, module.buffers())),
        gradient_bytes=sum(each.nbytes for each in trained),
        optimizer_bytes=sum(
            each.numel() * _state_bytes(each.element_size(), validate) for each in trained
        ),
    )


# An attempt copies gradient, value and both means (32 bytes), then the kernel runs once more.
_GUESS_BYTES = 32 + 28


def _plain_step_bytes(itemsize: int) -> int:
    """Count what a step reads and writes for a parameter: the norm, the kernel, and both casts."""
    num_bytes = itemsize + 28
    return num_bytes if itemsize >= 4 else num_bytes + 2 * (4 + itemsize)


def _state_bytes(itemsize: int, validate: str) -> int:
    """Count two means, a master copy below float32, and what post-validation keeps beside them.

    That is a copy of the parameter or, where a master copy serves, the gradient in float32.
    """
    is_post = validate == "post"
    if itemsize >= 4:
        return 8 + itemsize * is_post
    return 8 + 4 + (4 - itemsize) * is_post
