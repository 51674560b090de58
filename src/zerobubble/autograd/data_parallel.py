"""How is a stage wrapped in DDP or FSDP2 trained, when W comes after B?

Both reduce a gradient over the data-parallel ranks as soon as a backward, here B, has left it in
``.grad``, and that is too early for what W adds. So all microbatches of a step run without
reduction, as they do when gradients are accumulated, and it is done once after the last W.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


# Where gradients may be: see ``main_grad`` of WeightQueue.
_BUFFERS = ("grad", "main_grad")


@contextmanager
def gradient_sync_at_end(module: nn.Module) -> Iterator[None]:
    """Reduce the gradients of DDP and FSDP2 modules once, on leaving the block.

    Run all F, B and W of a step inside, the optimizer after it. Wherever in ``module`` the
    wrappers are, in the end every ``.grad`` is what they give: the mean over the data-parallel
    ranks, with FSDP2 as shards. Without a wrapper nothing happens. If the block raises, nothing is
    reduced. All ranks must leave their blocks for the same module in the same order.

    ::

        stage = DistributedDataParallel(stage)      # or: fully_shard(stage)
        with gradient_sync_at_end(stage):
            calls = [zb.splitting(stage)(x) for x in microbatches]
            for call, dy in zip(calls, output_gradients):
                call.backward_input(dy)
            for call in calls:
                call.backward_weight()
        optimizer.step()

    With DDP the mean is taken of ``.main_grad`` too, where W adds to it; FSDP2 cannot, and refuses
    with a RuntimeError. DDP's communication hooks do not run. FSDP2 keeps the parameters that B has
    gathered until the end; where it reduces in another dtype, W adds up in that of the parameters
    until the next B.
    """
    # Not above, since it takes as long to import as torch itself.
    from torch.distributed.fsdp import FSDPModule

    replicated = [m for m in module.modules() if isinstance(m, DistributedDataParallel)]
    sharded = [m for m in module.modules() if isinstance(m, FSDPModule)]
    with ExitStack() as without_sync:
        for wrapper in replicated:
            without_sync.enter_context(wrapper.no_sync())
        without_sync.enter_context(_without_reduction(sharded))
        yield
    _refuse_main_grad(sharded)
    for wrapper in replicated:
        _average(wrapper)
    for state in map(_state, sharded):
        if state._is_root:
            # Also what ends a plain backward: reduces, reshards, and waits for both.
            state._root_post_backward_final_callback()


@contextmanager
def _without_reduction(modules: Sequence["FSDPModule"]) -> Iterator[None]:
    """Let each B of FSDP2 modules leave gradients and gathered parameters as they are."""
    groups = [group for m in modules for group in _groups(m)]
    names = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")
    settings = [(group, name, getattr(group, name)) for group in groups for name in names]
    for m in modules:
        m.set_is_last_backward(False)
    for group, name, _ in settings:
        setattr(group, name, False)
    try:
        yield
    finally:
        for group, name, value in settings:
            setattr(group, name, value)
        for m in modules:
            m.set_is_last_backward(True)


def _state(module: "FSDPModule") -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard.state(module)  # type: ignore[attr-defined]


def _groups(module: "FSDPModule") -> list[Any]:
    state = _state(module)
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # an older torch has one at most
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(groups)


def _average(wrapper: DistributedDataParallel) -> None:
    """Give every gradient its mean over the ranks; a rank that has none counts as zero."""
    group: Any = wrapper.process_group
    buffers = [(p, name) for p in _reduced(wrapper) for name in _BUFFERS]
    if not buffers:
        return
    used = torch.tensor([getattr(p, name, None) is not None for p, name in buffers]).int()
    used = used.to(buffers[0][0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX, group)
    works = []
    for (parameter, name), is_used in zip(buffers, used.tolist(), strict=True):
        if is_used:
            gradient = _buffer(parameter, name).div_(group.size())
            works.append(dist.all_reduce(gradient, group=group, async_op=True))
    for work in works:
        work.wait()


def _reduced(wrapper: DistributedDataParallel) -> list[Parameter]:
    named = wrapper.module.named_parameters()
    return [p for name, p in named if p.requires_grad and name not in wrapper.parameters_to_ignore]


def _buffer(parameter: Parameter, name: str) -> Tensor:
    buffer: Tensor | None = getattr(parameter, name, None)
    if buffer is None:
        dtype = parameter.dtype if name == "grad" else torch.float32
        buffer = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        setattr(parameter, name, buffer)
    return buffer


def _refuse_main_grad(modules: Sequence["FSDPModule"]) -> None:
    for module in modules:
        for name, parameter in module.named_parameters():  # type: ignore[attr-defined]
            if getattr(parameter, "main_grad", None) is not None:
                raise RuntimeError(
                    f"parameter {name} has its gradient in main_grad, but FSDP2 reduces .grad: "
                    "leave main_grad out, and give fully_shard an mp_policy with the reduce_dtype"
                )
