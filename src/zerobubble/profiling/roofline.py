"""How long does a kernel take on a device of which only the data sheet is known?

A roofline (Williams, Waterman, Patterson, CACM 2009): a kernel lasts as long as its FLOPs at the
rate of matrix products, or as its bytes at the bandwidth of the memory, whichever is longer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from zerobubble.profiling.device_spec import TERA, DeviceSpec

_aten = torch.ops.aten
# They read as many rows of a table as they return, not all of it.
_LOOK_UPS = {_aten.embedding, _aten.index_select, _aten.gather, _aten.index}
_FREE = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten._unsafe_view}


@dataclass(frozen=True)
class Work:
    """What kernels have done, and how long that takes.

    Attributes:
        ms: time.
        flops: of matrix products, convolutions and attention.
        num_bytes: read from and written to memory.
    """

    ms: float = 0.0
    flops: int = 0
    num_bytes: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.ms + other.ms, self.flops + other.flops, self.num_bytes + other.num_bytes)


class Roofline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the work of all kernels that run within the block.

    >>> from zerobubble.profiling.device_spec import H100
    >>> x = torch.empty(1024, 1024, dtype=torch.bfloat16, device="meta")
    >>> with Roofline(H100) as roofline:
    ...     _ = x @ x
    >>> work = roofline.take()
    >>> work.flops == 2 * 1024**3, work.num_bytes == 3 * 2 * 1024**2, round(work.ms * 1e3, 2)
    (True, True, 6.62)
    """

    def __init__(self, device: DeviceSpec) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self._total = Work()

    def take(self) -> Work:
        """Give the work since the last call."""
        total, self._total = self._total, Work()
        return total

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, which on the meta device computes shapes only, and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self._total += self._work(func, args, kwargs, out)
        return out

    def _work(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Work:
        packet = getattr(func, "overloadpacket", None)
        if packet in _FREE or getattr(func, "is_view", True):
            return Work()
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if not made or all(each.numel() == 0 for each in made):
            return Work()
        if packet in _LOOK_UPS:
            num_bytes = 2 * _touched(made) + _touched(given[1:])
        else:
            num_bytes = _touched(given) + _touched(made)
        flops = _count_flops(packet, args, kwargs, out)
        dtype = given[0].dtype if given else torch.float32
        return Work(kernel_ms(self.device, flops, num_bytes, dtype), flops, num_bytes)


def _count_flops(packet: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    if packet is _aten._grouped_mm:  # which torch does not count
        return _grouped_flops(*args[:2])
    count = flop_registry.get(packet)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


def _grouped_flops(left: Tensor, right: Tensor) -> int:
    """Count the products of experts: every row, or column, or term of a sum is of one group."""
    num_groups = left.shape[0] if left.ndim == right.ndim == 3 else 1
    return 2 * num_groups * left.shape[-2] * left.shape[-1] * right.shape[-1]


def kernel_ms(device: DeviceSpec, flops: float, num_bytes: float, dtype: torch.dtype) -> float:
    """Give the time of a kernel in ms."""
    tflops = device.fp32_tflops if dtype.itemsize >= 4 else device.bf16_tflops
    compute_s = flops / (tflops * TERA * device.matmul_efficiency)
    memory_s = num_bytes / (device.memory_tb_per_s * TERA * device.memory_efficiency)
    return max(compute_s, memory_s) * 1e3 + device.kernel_us / 1e3


def _touched(tensors: Iterable[Tensor]) -> int:
    """Count bytes; of an expanded tensor those that exist."""
    return sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)


class FusedAttention(TorchFunctionMode):
    """Lets attention use the kernels of a GPU, which keep no matrix of all pairs of positions.

    The meta device would choose the unfused formula. Without a mask FlashAttention runs, which
    saves its inputs, its output and a logarithm for each row (arXiv 2205.14135), with one the
    memory-efficient kernel.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace scaled_dot_product_attention on the meta device."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and args and args[0].device.type == "meta":
            return _attend(*args, **kwargs)
        return func(*args, **kwargs)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is None:
        kernel: Callable[..., Any] = _aten._scaled_dot_product_flash_attention
        outputs = kernel(query, key, value, dropout_p, is_causal, scale=scale)
    else:
        if enable_gqa:
            key, value = (
                each.repeat_interleave(query.shape[1] // each.shape[1], dim=1)
                for each in (key, value)
            )
        bias = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
        kernel = _aten._scaled_dot_product_efficient_attention
        outputs = kernel(query, key, value, bias, True, dropout_p, is_causal, scale=scale)
    attended: Tensor = outputs[0]
    return attended
