"""Which parameters does the optimizer step? The model's own, or float32 copies of them."""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from zerobubble.errors import UsageError
from zerobubble.runtime.optimizer_state import HostState, OptimizerState, ResidentState

_LOW_PRECISION = (torch.bfloat16, torch.float16)


class Weights:
    """The parameters that an optimizer owns, each with the one that the model computes with.

    With master weights, a parameter of bfloat16 or float16 gets a float32 copy: gradients are cast
    to it, and its new value is rounded to the working parameter. All others own themselves.

    Args:
        inner: the optimizer; None where this rank holds nothing to train.
        working: the working parameter of each master copy.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer | None,
        working: Mapping[nn.Parameter, nn.Parameter] | None = None,
    ) -> None:
        self.inner = inner
        self.masters = dict(working or {})
        self._state: OptimizerState | None = None if inner is None else ResidentState(inner)

    @property
    def state(self) -> OptimizerState:
        """The state of the optimizer."""
        assert self._state is not None, "only an optimizer has state"
        return self._state

    def offload_state(self) -> None:
        """Let the state live in host memory; masters stay where they are."""
        if self.inner is not None:
            self._state = HostState(self.inner)

    @property
    def owned(self) -> list[nn.Parameter]:
        """The parameters of all groups, in their order."""
        groups = [] if self.inner is None else self.inner.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    @property
    def all_working(self) -> set[nn.Parameter]:
        """All parameters that the model computes with and the optimizer steps."""
        return {self.working(parameter) for parameter in self.owned}

    def working(self, owned: nn.Parameter) -> nn.Parameter:
        """Find the parameter that the model computes with."""
        return self.masters.get(owned, owned)

    def collect_gradients(self) -> list[nn.Parameter]:
        """Cast gradients to where they are owned; list the parameters that have one."""
        for master, working in self.masters.items():
            if working.grad is not None:
                master.grad = working.grad.to(master.dtype)
                working.grad = None
        return [parameter for parameter in self.owned if parameter.grad is not None]

    def drop_gradients(self) -> None:
        """Set all gradients to None."""
        for parameter in self.owned:
            parameter.grad = self.working(parameter).grad = None

    def take(self) -> None:
        """Give masters the value of their working parameters."""
        for master, working in self.masters.items():
            master.copy_(working)

    def round(self, owned: Iterable[nn.Parameter]) -> None:
        """Give working parameters the value of their masters."""
        for parameter in owned:
            if parameter in self.masters:
                self.masters[parameter].copy_(parameter)


def build_weights(
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    options: Mapping[str, Any],
    master_weights: bool,
) -> Weights:
    """Take an optimizer as it is, or build one for this rank's trainable parameters.

    Raises:
        UsageError: options are given beside a finished optimizer, or master weights beside one
            that has stepped; it is for other parameters, or needs a closure.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        if options:
            raise UsageError(f"options {sorted(options)} need an optimizer class, not an instance")
        own = set(parameters.values())
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter not in own:
                raise UsageError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that is not "
                    "this rank's: make it from pipe.named_parameters()"
                )
        _must_need_no_closure(optimizer)
        return Weights(optimizer, _give_masters(optimizer) if master_weights else None)
    trainable = [p for p in dict.fromkeys(parameters.values()) if p.requires_grad]
    if not trainable:
        return Weights(None)
    masters = _masters(trainable) if master_weights else {}
    inner = optimizer([masters.get(p, p) for p in trainable], **options)
    _must_need_no_closure(inner)
    return Weights(inner, {master: working for working, master in masters.items()})


def _must_need_no_closure(inner: torch.optim.Optimizer) -> None:
    closure = signature(type(inner).step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise UsageError(
            f"{type(inner).__name__} evaluates the loss again within its step, which a pipeline "
            "cannot: use an optimizer whose step needs no closure"
        )


def _masters(parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
    return {p: nn.Parameter(p.detach().float()) for p in parameters if p.dtype in _LOW_PRECISION}


def _give_masters(inner: torch.optim.Optimizer) -> dict[nn.Parameter, nn.Parameter]:
    """Replace the parameters of an optimizer by masters; return the working one of each."""
    if inner.state:
        raise UsageError("master_weights need an optimizer that has not stepped: make it anew")
    masters = _masters(p for group in inner.param_groups for p in group["params"])
    for group in inner.param_groups:
        group["params"] = [masters.get(p, p) for p in group["params"]]
    return {master: working for working, master in masters.items()}
