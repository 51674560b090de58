"""How can a step be taken before it is known whether it stands, and then be taken back?

AdamW, Adam and SGD go the light way: the working parameters alone get their new values, from the
optimizer's own kernel run on copies of its state, a bucket at a time. The parameters as they were
and the state stay untouched until the verdict; then the same kernel runs on them with the final
gradients, so that the result has the bits of a step without a guess. With master weights even the
parameters need no copy. Any other optimizer really steps, after a full snapshot.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree

from zerobubble.errors import UsageError
from zerobubble.runtime.agreement import Verdict
from zerobubble.runtime.master_weights import Weights
from zerobubble.runtime.optimizer_state import States, copy_of

BUCKET_BYTES = 64 * 2**20
_LIGHT = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)


class Attempt(ABC):
    """A step taken on a guess: with gradients as they are, which it keeps until the verdict."""

    @property
    @abstractmethod
    def kept(self) -> list[Tensor]:
        """Everything that is held until the verdict."""

    def end(self, verdict: Verdict) -> None:
        """Let the step stand, do it over with clipped gradients, or undo it."""
        if verdict.is_plain:
            self.commit()
        elif verdict.is_finite:
            self.redo(verdict.factor)
        else:
            self.undo()

    @abstractmethod
    def commit(self) -> None:
        """Let the step stand; working parameters are not written to, since graphs hold them."""

    @abstractmethod
    def redo(self, factor: float) -> None:
        """Step from where the attempt began, with gradients multiplied by a factor."""

    @abstractmethod
    def undo(self) -> None:
        """Go back to where the attempt began."""


def attempt(weights: Weights, owned: Sequence[nn.Parameter]) -> Attempt:
    """Step the working parameters by the gradients of ``owned``, which the attempt takes over."""
    assert weights.inner is not None, "only an optimizer can step"
    is_light = type(weights.inner) in _LIGHT
    begun = _LightAttempt(weights) if is_light else _SnapshotAttempt(weights, owned)
    weights.drop_gradients()
    if is_light:
        weights.inner.step()  # moves nothing, but learning-rate schedulers watch for it
    return begun


def step_in_buckets(weights: Weights) -> None:
    """Step as the optimizer would, a bucket at a time, and drop the gradients."""
    inner = weights.inner
    assert inner is not None, "only an optimizer can step"
    buckets = list(_buckets(inner))
    all_states = weights.state.each([owned for _, owned in buckets])
    for (options, owned), states in zip(buckets, all_states, strict=True):
        values = [p.detach() for p in owned]
        gradients = [p.grad for p in owned if p.grad is not None]
        weights.state.put(owned, _run_kernel(inner, options, values, gradients, states))
    weights.drop_gradients()
    inner.step()  # moves nothing, but learning-rate schedulers watch for it


def multiply(gradients: list[Tensor], factor: float) -> None:
    """Multiply gradients, of which there may be none, in place."""
    if gradients and factor != 1:
        torch._foreach_mul_(gradients, factor)


def must_see_what_stands(inner: torch.optim.Optimizer) -> bool:
    """Say whether ``step`` has hooks, or has been replaced other than by a scheduler of torch."""
    is_replaced = "step" in vars(inner) and not hasattr(inner.step, "_wrapped_by_lr_sched")
    return is_replaced or any(
        (
            inner._optimizer_step_pre_hooks,
            inner._optimizer_step_post_hooks,
            _global_optimizer_pre_hooks,
            _global_optimizer_post_hooks,
        )
    )


def must_be_steppable_in_buckets(inner: torch.optim.Optimizer) -> None:
    """Raise a UsageError unless the state of an optimizer may come and go by buckets."""
    if type(inner) not in _LIGHT:
        raise UsageError(
            f"offload_state works with AdamW, Adam and SGD, not with {type(inner).__name__}: "
            "use one of these, or leave the state on the device"
        )
    if must_see_what_stands(inner):
        raise UsageError(
            "offload_state steps bucket by bucket, but the optimizer has hooks on step, or another "
            "step: remove them, or leave the state on the device"
        )


@dataclass
class _Bucket:
    """Some parameters of one group: their values before the attempt, and their gradients."""

    options: dict[str, Any]
    owned: list[nn.Parameter]
    before: list[Tensor]
    gradients: list[Tensor]


class _LightAttempt(Attempt):
    def __init__(self, weights: Weights) -> None:
        assert weights.inner is not None
        self.inner = weights.inner
        self.weights = weights
        buckets = list(_buckets(self.inner))
        states = weights.state.each_copied([owned for _, owned in buckets])
        self._buckets = [
            self._try(*bucket, copies) for bucket, copies in zip(buckets, states, strict=True)
        ]

    @property
    def kept(self) -> list[Tensor]:
        copies = [
            before
            for bucket in self._buckets
            for owned, before in zip(bucket.owned, bucket.before, strict=True)
            if owned not in self.weights.masters
        ]
        return copies + self._gradients()

    def _gradients(self) -> list[Tensor]:
        return [gradient for bucket in self._buckets for gradient in bucket.gradients]

    def _try(self, options: dict[str, Any], owned: list[nn.Parameter], states: States) -> _Bucket:
        """Give the working parameters their new values; copies of a bucket live that long."""
        masters = self.weights.masters
        before = [p.detach() if p in masters else p.detach().clone() for p in owned]
        after = [p.detach().clone() if p in masters else p.detach() for p in owned]
        gradients = [p.grad for p in owned if p.grad is not None]
        _run_kernel(self.inner, options, after, [g.clone() for g in gradients], states)
        for parameter, value in zip(owned, after, strict=True):
            if parameter in masters:
                masters[parameter].copy_(value)
        return _Bucket(options, owned, before, gradients)

    def commit(self) -> None:
        all_states = self.weights.state.each([bucket.owned for bucket in self._buckets])
        for bucket, states in zip(self._buckets, all_states, strict=True):
            gradients = bucket.gradients
            new = _run_kernel(self.inner, bucket.options, bucket.before, gradients, states)
            self.weights.state.put(bucket.owned, new)

    def redo(self, factor: float) -> None:
        multiply(self._gradients(), factor)
        self.commit()
        self.undo()

    def undo(self) -> None:
        for bucket in self._buckets:
            for parameter, value in zip(bucket.owned, bucket.before, strict=True):
                self.weights.working(parameter).copy_(value)


def _buckets(
    inner: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], list[nn.Parameter]]]:
    """Split the parameters with gradients into buckets, each with the options of its group."""
    for group, options in zip(inner.param_groups, _options(inner), strict=True):
        bucket: list[nn.Parameter] = []
        num_bytes = 0
        for parameter in group["params"]:
            if parameter.grad is not None:
                bucket.append(parameter)
                num_bytes += parameter.nbytes
            if num_bytes >= BUCKET_BYTES:
                yield options, bucket
                bucket, num_bytes = [], 0
        if bucket:
            yield options, bucket


def _run_kernel(
    inner: torch.optim.Optimizer,
    options: dict[str, Any],
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Step values and states in place, as the optimizer would; return the states."""
    stand_ins = [nn.Parameter(value) for value in values]
    for stand_in, gradient in zip(stand_ins, gradients, strict=True):
        stand_in.grad = gradient
    given = zip(stand_ins, states, strict=True)
    state: defaultdict[Tensor, Any] = defaultdict(
        dict, {stand_in: state for stand_in, state in given if state}
    )
    own = inner.param_groups, inner.state
    inner.param_groups, inner.state = [{**options, "params": stand_ins}], state
    try:
        _step_unhooked(inner)
    finally:
        inner.param_groups, inner.state = own
    return [state.get(stand_in, {}) for stand_in in stand_ins]


def _step_unhooked(inner: torch.optim.Optimizer) -> None:
    step = type(inner).step
    getattr(step, "__wrapped__", step)(inner)


class _SnapshotAttempt(Attempt):
    def __init__(self, weights: Weights, owned: Sequence[nn.Parameter]) -> None:
        assert weights.inner is not None
        self.inner = weights.inner
        self.weights = weights
        self._values = {p: p.detach().clone() for p in weights.owned}
        self._state = copy_of(self.inner.state)
        self._options = _options(self.inner)
        self._gradients = {p: p.grad for p in owned if p.grad is not None}
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient.clone()
        self.inner.step()
        weights.round(owned)
        self._options_after = _options(self.inner)

    @property
    def kept(self) -> list[Tensor]:
        leaves = pytree.tree_leaves(list(self._state.values()))
        of_state = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return [*self._values.values(), *of_state, *self._gradients.values()]

    def commit(self) -> None:
        """Nothing is left to do: the optimizer has stepped."""

    def redo(self, factor: float) -> None:
        multiply(list(self._gradients.values()), factor)
        with self._as_before():
            for parameter, gradient in self._gradients.items():
                parameter.grad = gradient
            _step_unhooked(self.inner)
            for parameter in self._gradients:
                parameter.grad = None
        self.weights.round(self._gradients)

    def undo(self) -> None:
        with self._as_before():
            pass
        self.weights.round(self._gradients)

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """Put everything back; group options that changed since the attempt are kept in the end."""
        groups = self.inner.param_groups
        changed = [
            {key: value for key, value in group.items() if not _is_same(value, after.get(key))}
            for group, after in zip(groups, self._options_after, strict=False)
        ]
        for parameter, value in self._values.items():
            parameter.copy_(value)
        self.inner.state.clear()
        self.inner.state.update(self._state)
        for group, options in zip(groups, self._options, strict=False):
            parameters = group["params"]
            group.clear()
            group.update({"params": parameters, **options})
        yield
        for group, values in zip(groups, changed, strict=False):
            group.update(values)


def _options(inner: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Copy what is set for each group."""
    return [
        {key: deepcopy(value) for key, value in group.items() if key != "params"}
        for group in inner.param_groups
    ]


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return torch.equal(value, other)
    return bool(value == other)
