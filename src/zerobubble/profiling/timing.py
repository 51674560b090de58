"""How long does an op last in the middle of others? Medians of marks, without a wait for each."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

Mark = int | torch.cuda.Event


@dataclass
class Stopwatch:
    """Times calls by name; on CUDA by events, which nobody waits for until they are read."""

    device: torch.device
    _marks: dict[str, list[tuple[Mark, Mark]]] = field(default_factory=dict)

    def run(self, name: str, call: Callable[[], object]) -> None:
        """Run a call and note its start and end."""
        start = self._mark()
        call()
        self._marks.setdefault(name, []).append((start, self._mark()))

    def clear(self) -> None:
        """Forget all calls so far."""
        self._marks.clear()

    def medians_ms(self) -> dict[str, float]:
        """Give the median duration of the calls of each name."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return {
            name: median(_elapsed_ms(*each) for each in marks)
            for name, marks in self._marks.items()
        }

    def _mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _elapsed_ms(start: Mark, end: Mark) -> float:
    if isinstance(start, int) and isinstance(end, int):
        return (end - start) / 1e6
    assert isinstance(start, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    return float(start.elapsed_time(end))
