"""How much of a module's backward can W do, and what stays in B, and why?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zerobubble.autograd import native
from zerobubble.autograd.consumers import Use, graph_nodes, uses_of_parameters
from zerobubble.autograd.intercept import deferring
from zerobubble.autograd.queue import WeightQueue

_UNUSED = "parameters without use: this call has no gradient for them"
_COMPILED = "FLOPs not counted, and W has linear, embedding and the functions matmul, mm and addmm"
_IN_COMPILED = f"parameters not seen in compiled code: {_COMPILED}"
_IN_CHECKPOINT = "parameters in a reentrant checkpoint: their use is seen in B only"


class SplitRow(NamedTuple):
    """One parameter: the FLOPs of its gradient in W and in B, and why it is in B."""

    parameter: str
    flops_in_w: int
    flops_in_b: int
    reason: str  # empty: all of it is in W


@dataclass(frozen=True)
class SplitReport:
    """What one call of a module leaves to W.

    FLOPs are those of parameter gradients in matrix products, convolutions and recurrent layers,
    outside code that torch.compile has made.
    """

    rows: tuple[SplitRow, ...]

    @property
    def deferred_share(self) -> float:
        """Share of the FLOPs that is in W, from 0 to 1; 1 if there are none."""
        total = sum(row.flops_in_w + row.flops_in_b for row in self.rows)
        return sum(row.flops_in_w for row in self.rows) / total if total else 1.0

    @property
    def summary(self) -> str:
        """One line: the share, and what stays in B."""
        short = ", ".join(reason.split(":")[0] for reason in self._in_b())
        return f"{self._share}; {short} in B" if short else self._share

    def __str__(self) -> str:
        """Draw a table: a line for W, and one for each reason to stay in B."""
        in_w = [row for row in self.rows if not row.reason]
        lines = [f"W  {_flops(sum(row.flops_in_w for row in in_w)):>11}  {_names(in_w)}"]
        for reason, rows in self._in_b().items():
            flops = _flops(sum(row.flops_in_b for row in rows))
            lines.append(f"B  {flops:>11}  {_names(rows)}: {reason}")
        return "\n".join([self._share, *lines])

    @property
    def _share(self) -> str:
        return f"{self.deferred_share:.0%} of parameter-gradient FLOPs in W"

    def _in_b(self) -> dict[str, list[SplitRow]]:
        reasons: dict[str, list[SplitRow]] = {}
        for row in self.rows:
            if row.reason:
                reasons.setdefault(row.reason, []).append(row)
        return reasons


def split_report(module: nn.Module, *args: Any, **kwargs: Any) -> SplitReport:
    """Say what a call ``module(*args, **kwargs)`` leaves to W, and what stays in B and why.

    Runs the forward once and reads its graph: no backward, no ``.grad``, and buffers and the
    random state are put back, also if the forward fails. ``str()`` of the report is a table.

    Raises:
        TypeError: ``module`` is no module, so that its parameters have no names.

    >>> from torch import nn
    >>> layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.LSTM(8, 8))
    >>> report = split_report(layers, torch.ones(5, 2, 8))
    >>> report.deferred_share
    0.1111111111111111
    >>> print(report)
    11% of parameter-gradient FLOPs in W
    W   1.28 kFLOP  2 parameters
    B       0 FLOP  2 parameters (1.weight, 1.bias): norms: cheap, kept in B on purpose
    B   10.2 kFLOP  4 parameters (2.weight_ih_l0, ..., 2.bias_hh_l0): LSTM cells: no split for \
aten::lstm
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"split_report takes an nn.Module, whose parameters have names, not a "
            f"{type(module).__name__}: pass the module that it calls"
        )
    with _state_kept(module), native.in_python(), torch.enable_grad(), deferring(WeightQueue()):
        output = module(*args, **kwargs)
    outputs = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
    uses = uses_of_parameters(outputs)
    names = {node.name() for node in graph_nodes(outputs)}
    owners = {f"{n}.{m}" if n else m: o for n, o in module.named_modules() for m in _own(o)}
    rows = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            found = uses.get(parameter, [])
            in_b = [use for use in found if not use.in_w]
            reason = _reason(name, parameter, owners[name], in_b) if in_b else ""
            if not found:
                reason = _reason_unseen(names)
            flops_in_w = sum(use.num_flops for use in found if use.in_w)
            flops_in_b = sum(use.num_flops for use in in_b)
            rows.append(SplitRow(name, flops_in_w, flops_in_b, reason))
    return SplitReport(tuple(rows))


def _reason_unseen(names: set[str]) -> str:
    """Say why no op of a graph with nodes of these names uses a parameter."""
    if "CheckpointFunctionBackward" in names:
        return _IN_CHECKPOINT
    return _IN_COMPILED if any(name.startswith("Compiled") for name in names) else _UNUSED


def _own(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _reason(name: str, parameter: nn.Parameter, owner: nn.Module, uses: list[Use]) -> str:
    use = max(uses, key=lambda use: use.num_flops)
    kind = type(owner).__name__
    if parameter._backward_hooks:
        return "parameters with a tensor hook: it must see the gradient in B"
    if type(parameter) is not nn.Parameter:
        return f"parameters of class {type(parameter).__name__}: used through a tensor subclass"
    if isinstance(owner, nn.RNNBase | nn.RNNCellBase):
        kind = getattr(owner, "mode", kind.removesuffix("Cell"))
        return f"{kind} cells: no split for aten::{kind.lower()}"
    if "Norm" in kind and not use.num_flops:
        return "norms: cheap, kept in B on purpose"
    if "parametrizations." in name:
        return "parametrized weights: the parameter is not an operand itself"
    if use.op == "aten::embedding":
        return "sparse or renormalized embeddings: no split for them"
    if use.op.startswith("Compiled"):
        return f"parameters in compiled code: {_COMPILED}"
    if not use.op.startswith("aten::"):
        return f"autograd function {use.op}: its backward is a whole"
    if use.num_flops:
        return f"{use.op}: no split for this way to call it"
    return f"{use.op}: cheap, kept in B on purpose"


@contextmanager
def _state_kept(module: nn.Module) -> Iterator[None]:
    """Put buffers, also those bound anew, and the random state back."""
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    bound = [(owner._buffers, dict(owner._buffers)) for owner in module.modules()]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for buffers, before in bound:
            buffers.clear()
            buffers.update(before)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


def _names(rows: list[SplitRow]) -> str:
    count = f"{len(rows)} parameter{'s' * (len(rows) != 1)}"
    if not rows or not rows[0].reason:
        return count
    names = [row.parameter for row in rows]
    return f"{count} ({', '.join(names if len(names) < 4 else [names[0], '...', names[-1]])})"


def _flops(number: float) -> str:
    for prefix in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {prefix}FLOP"
        number /= 1000
    return f"{number:.3g} TFLOP"
