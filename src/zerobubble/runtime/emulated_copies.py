"""How long do copies to the host and back take on a device clock? As long as the costs say.

The real copies run as well, and so do the executor and the stages around them; the times are those
of two copy engines of the emulated device.
"""

from typing import Any

from torch import Tensor

from zerobubble.costs import Costs
from zerobubble.errors import UsageError
from zerobubble.ir import Op, Schedule
from zerobubble.runtime.emulate import Device, Slice, emulated_loss, emulated_stages
from zerobubble.runtime.offload.copying import Copies, Copy
from zerobubble.runtime.offload.store import Place
from zerobubble.runtime.pipeline import Pipeline
from zerobubble.runtime.watch import watch


class EmulatedCopies:
    """The copy engines of a device clock; the real copies run too.

    Args:
        copies: those.
        costs: with the times of O and L.
        device: the clock of the rank.
    """

    def __init__(self, copies: Copies, costs: Costs, device: Device) -> None:
        self._copies = copies
        self._costs = costs
        self._device = device
        self.device = copies.device
        self.free = copies.free
        self.close = copies.close

    def out(self, sources: list[Tensor]) -> Copy[list[Place]]:
        """Begin to copy away what the F has saved that runs now."""
        place = self._device.begin_offload(float(self._costs.offload[_stage_at_work()]))
        return _Offload(self._device, place, self._copies.out(sources))

    def back(self, places: list[Place], targets: list[Tensor]) -> Copy[None]:
        """Begin the L that runs now."""
        place = self._device.begin_load(float(self._costs.load[_stage_at_work()]))
        return _Load(self._device, place, self._copies.back(places, targets))


class _Offload:
    """A copy to the host; the compute asks for its result where it passes O."""

    def __init__(self, device: Device, place: Slice, copy: Copy[list[Place]]) -> None:
        self._device, self._place, self._copy = device, place, copy

    def result(self) -> list[Place]:
        self._device.ops.append(self._place)
        self._device.wait_for(self._place[1])
        return self._copy.result()


class _Load:
    """A copy back; B asks for its result."""

    def __init__(self, device: Device, place: Slice, copy: Copy[None]) -> None:
        self._device, self._place, self._copy = device, place, copy

    def result(self) -> None:
        self._device.wait_for(self._place[1])
        self._copy.result()


def _stage_at_work() -> int:
    assert isinstance(watch.work, Op), "copies begin within F and L"
    return watch.work.stage


def emulated_pipeline(schedule: Schedule, costs: Costs, device: Device, **options: Any) -> Pipeline:
    """Make a pipeline of emulated stages whose copies take the times of the costs.

    Args:
        schedule: what to run.
        costs: of its stages, in milliseconds.
        device: the clock of this rank.
        options: of the pipeline.

    Raises:
        UsageError: the costs are for another number of stages, or ranks share copy engines.
    """
    if schedule.has_copies and costs.ranks_per_engine > 1:
        raise UsageError(
            "emulated ranks have copy engines of their own: give costs with ranks_per_engine 1, "
            f"not {costs.ranks_per_engine}"
        )
    stages = emulated_stages(schedule, costs, device)
    pipe = Pipeline(stages, schedule, emulated_loss, **options)
    pipe.offloading.copies = EmulatedCopies(pipe.offloading.copies, costs, device)
    pipe.transport.on_wait = device.waited
    return pipe
