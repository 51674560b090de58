"""Where does the state of an optimizer live, and how does it reach the kernel that steps it?

Beside the parameters, or in host memory (ZeRO-Offload's idea, arXiv 2101.06840): then the state of
one bucket of parameters after another comes to the device while the kernel runs on the bucket
before it, and goes back behind it, so that at most two buckets of state are there at any time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from zerobubble.runtime.ledger import Account

Parameters = Sequence[nn.Parameter]
States = list[dict[str, Any]]
_Copies = list[tuple[Tensor, Tensor]]
_T = TypeVar("_T")


class OptimizerState(ABC):
    """The state of an optimizer, handed out a bucket of parameters at a time."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @abstractmethod
    def each(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield the state of every bucket, to be stepped and given to ``put`` before the next."""

    @abstractmethod
    def each_copied(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield a copy of the state of every bucket, to be thrown away before the next."""

    @abstractmethod
    def put(self, parameters: Parameters, states: States) -> None:
        """Take the state of a bucket, which the kernel may have made, after its step."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` of a ``torch.optim`` optimizer has given."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until ``inner.state`` holds what was put."""


class ResidentState(OptimizerState):
    """State that lives where the parameters do."""

    def each(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield the state itself."""
        for parameters in buckets:
            yield [self.inner.state.get(p, {}) for p in parameters]

    def each_copied(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield copies."""
        for states in self.each(buckets):
            yield [copy_of(state) for state in states]

    def put(self, parameters: Parameters, states: States) -> None:
        """Take new state."""
        for parameter, state in zip(parameters, states, strict=True):
            if state:
                self.inner.state[parameter] = state

    def load(self, state: dict[str, Any]) -> None:
        """Load all of it to where the parameters are."""
        self.inner.load_state_dict(state)

    def finish(self) -> None:
        """Nothing is ever on its way."""


class HostState(OptimizerState):
    """State that lives in host memory, pinned where the parameters are on a CUDA device.

    On the CPU the device is the same memory: copies come and go all the same, and are counted.

    Attributes:
        on_device: the account of the state's bytes on the device.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self.on_device = Account()
        self._counting = Lock()
        self._behind: dict[torch.device, _Behind] = {}
        for parameter, state in [*inner.state.items()]:
            _copy(self._take_home(parameter, state), is_blocking=True)

    @property
    def host_bytes(self) -> int:
        """Bytes of the state in host memory."""
        states = self.inner.state.items()
        values = (v for p, s in states for k, v in s.items() if self._moves(k, v, p))
        return sum(value.nbytes for value in values)

    def each(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield the state on the device, that of the next bucket on its way meanwhile."""
        coming = [self._fetch(parameters) for parameters in buckets[:1]]
        for following in (*buckets[1:], None):
            states = coming.pop()()
            if following is not None:
                coming.append(self._fetch(following))
            yield states
            for state in states:  # whoever holds the list must not hold its tensors
                state.clear()
            if not coming:
                return

    def each_copied(self, buckets: Sequence[Parameters]) -> Iterator[States]:
        """Yield the state on the device, which is a copy, but for what stays on the host."""
        for parameters, states in zip(buckets, self.each(buckets), strict=True):
            for parameter, state in zip(parameters, states, strict=True):
                home = self.inner.state.get(parameter, {})
                state.update({k: deepcopy(v) for k, v in state.items() if v is home.get(k)})
            yield states

    def put(self, parameters: Parameters, states: States) -> None:
        """Send state back behind the kernel; wait for it where the kernel has made it."""
        known = {id(v) for p in parameters for v in self.inner.state.get(p, {}).values()}
        copies: _Copies = []
        for parameter, state in zip(parameters, states, strict=True):
            copies += self._take_home(parameter, state)
            state.clear()  # whoever holds it must not hold its tensors
        new = [value for home, value in copies if id(home) not in known]
        self._count(new)
        sent = self._run_behind(parameters, lambda: _copy(copies))
        if new:
            sent()

    def load(self, state: dict[str, Any]) -> None:
        """Load the groups as torch does, and the state straight into host memory."""
        self.finish()
        self.inner.load_state_dict({**state, "state": {}})
        saved = [i for group in state["param_groups"] for i in group["params"]]
        owned = [p for group in self.inner.param_groups for p in group["params"]]
        for i, parameter in zip(saved, owned, strict=True):
            loaded = copy_of(state["state"].get(i, {}))
            for key, value in loaded.items():
                if key != "step" and self._moves(key, value, parameter):
                    loaded[key] = value.to(parameter.dtype)  # as torch does
            _copy(self._take_home(parameter, loaded), is_blocking=True)

    def finish(self) -> None:
        """Wait for all copies."""
        for behind in self._behind.values():
            behind.finish()

    def _fetch(self, parameters: Parameters) -> Callable[[], States]:
        """Start to bring the state of a bucket to the device."""
        # The copies know nothing of the optimizer, which holds stand-ins during a step.
        states = [dict(self.inner.state.get(p, {})) for p in parameters]
        moving = [
            (state, key, parameter.device)
            for parameter, state in zip(parameters, states, strict=True)
            for key, value in state.items()
            if self._moves(key, value, parameter)
        ]

        def bring() -> States:
            for state, key, device in moving:
                home = state[key]
                state[key] = torch.empty_like(home, device=device).copy_(home, non_blocking=True)
            self._count(state[key] for state, key, _ in moving)
            return states

        return self._run_behind(parameters, bring)

    def _take_home(self, parameter: Tensor, state: Mapping[str, Any]) -> _Copies:
        """Make room for a state where there is none; list what is to be copied there."""
        home = dict(self.inner.state.get(parameter, {}))
        copies: _Copies = []
        for key, value in state.items():
            if self._moves(key, value, parameter):
                there = home.get(key)
                if not isinstance(there, Tensor) or not there.is_cpu or there is value:
                    there = torch.empty_like(value, device="cpu", pin_memory=parameter.is_cuda)
                copies.append((there, value))
                home[key] = there
            else:
                home[key] = value
        if home:
            self.inner.state[parameter] = home
        return copies

    def _count(self, tensors: Iterable[Tensor]) -> None:
        with self._counting:
            self.on_device.track(tensors)

    def _moves(self, key: str, value: Any, parameter: Tensor) -> bool:
        """Whether a value is on the device in a step: as in torch not so the number of steps."""
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return False
        if key != "step":
            return True
        groups = self.inner.param_groups
        return parameter.is_cuda and any(g.get("capturable") or g.get("fused") for g in groups)

    def _run_behind(self, parameters: Parameters, work: Callable[[], _T]) -> Callable[[], _T]:
        device = parameters[0].device
        if device not in self._behind:
            self._behind[device] = _Stream(device) if device.type == "cuda" else _Thread()
        return self._behind[device].start(work)


class _Behind(ABC):
    """Runs copies in their order, beside the computation."""

    @abstractmethod
    def start(self, work: Callable[[], _T]) -> Callable[[], _T]:
        """Run after all that was computed so far; calling what is returned waits for the end."""

    @abstractmethod
    def finish(self) -> None:
        """Let the host wait for all of them."""


class _Thread(_Behind):
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "optimizer state")
        self._last: Future[Any] | None = None

    def start(self, work: Callable[[], _T]) -> Callable[[], _T]:
        future = self._executor.submit(work)
        self._last = future
        return future.result

    def finish(self) -> None:
        if self._last is not None:
            self._last.result()


class _Stream(_Behind):
    """A side stream: the computation waits for it by events, the host does not.

    Memory of copies belongs to this stream, which waits for the computation before it reuses any.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, work: Callable[[], _T]) -> Callable[[], _T]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            found = work()
        ended = self._stream.record_event()

        def wait() -> _T:
            torch.cuda.current_stream(self._device).wait_event(ended)
            return found

        return wait

    def finish(self) -> None:
        self._stream.synchronize()


def copy_of(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy tensors and values, however nested; parameters stand for themselves."""
    parameters = {id(key): key for key in state if isinstance(key, Tensor)}
    return {key: deepcopy(value, dict(parameters)) for key, value in state.items()}


def _copy(copies: _Copies, is_blocking: bool = False) -> None:
    """Copy, and let go of the sources one by one; if not blocking, pinned memory comes later."""
    while copies:
        there, value = copies.pop()
        there.copy_(value, non_blocking=not is_blocking)
