"""What does a plan settle for a run, and did the run go as it had forecast?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from zerobubble.costs import Costs, Floats
from zerobubble.errors import UsageError
from zerobubble.ir import Kind
from zerobubble.plan.data import Plan
from zerobubble.plan.forecast import step_ms
from zerobubble.simulate import Timeline
from zerobubble.train.config import TrainConfig

TOLERANCE = 0.1
_NUM_NAMED = 3
# Where the ops account for less of a difference than this, it is told that something else does.
_SHARE_OF_OPS = 0.5


def follow(config: TrainConfig, plan: Plan) -> TrainConfig:
    """Let a plan settle ranks, microbatches, batch size and validation of a run.

    Raises:
        UsageError: the configuration sets one of them to something else.
    """
    settled: dict[str, dict[str, Any]] = {
        "run": {
            "ranks": plan.schedule.num_ranks,
            "microbatches": plan.schedule.num_microbatches,
            "schedule": TrainConfig().run.schedule,
        },
        "data": {"batch_size": plan.batch_size},
        "optimizer": {"validate": plan.validate},
    }
    sections = {}
    for section, values in settled.items():
        given, defaults = getattr(config, section), getattr(TrainConfig(), section)
        for name, value in values.items():
            asked = getattr(given, name)
            if asked not in (getattr(defaults, name), value):
                of_plan = plan.schedule.name if name == "schedule" else value
                raise UsageError(
                    f"{name} is {asked}, but the plan has {of_plan}: leave it out, or plan anew"
                )
        sections[section] = replace(given, **values)
    return replace(config, **sections)


class Deviation(NamedTuple):
    """How much longer all ops of one kind and stage took in a step than was expected, in ms."""

    kind: Kind
    stage: int
    num_ops: int
    expected_ms: float
    measured_ms: float

    @property
    def per_step_ms(self) -> float:
        """All of them together; negative where they were faster."""
        return self.num_ops * (self.measured_ms - self.expected_ms)


def deviations(timelines: Sequence[Timeline], expected: Costs) -> list[Deviation]:
    """Compare the median times of the ops with the expected ones, the largest differences first."""
    schedule, durations = timelines[0].schedule, expected.durations()
    samples: dict[tuple[int, int], list[float]] = {}
    for timeline in timelines:
        for order, start, end in zip(schedule.orders, timeline.start, timeline.end, strict=True):
            kinds, stages, _ = schedule.fields(order)
            for kind, stage, ms in zip(kinds.tolist(), stages.tolist(), end - start, strict=True):
                samples.setdefault((kind, stage), []).append(float(ms))
    found = [
        Deviation(
            Kind(kind),
            stage,
            len(values) // len(timelines),
            float(durations[kind, stage]),
            float(np.median(values)),
        )
        for (kind, stage), values in sorted(samples.items())
    ]
    return sorted(found, key=lambda each: -abs(each.per_step_ms))


@dataclass(frozen=True)
class Expected:
    """What is expected of a step: by the plan, or by a new search with measured times.

    Attributes:
        plan: names the layers of the stages, and how the optimizer steps.
        costs: times of the ops in ms.
        step_ms: time from step to step.
    """

    plan: Plan
    costs: Costs
    step_ms: float

    @classmethod
    def of(cls, plan: Plan) -> "Expected":
        """Take what the plan forecasts."""
        return cls(plan, plan.costs, plan.forecast.step_ms)

    def after(self, timeline: Timeline, costs: Costs) -> "Expected":
        """Take a new schedule, simulated with measured costs; the optimizer's time stays."""
        of_plan = self.plan.forecast
        step = step_ms(
            np.array(timeline.span_per_rank),
            timeline.makespan,
            np.array(of_plan.optimizer_ms),
            self.plan.validate,
            of_plan.overhead_ms,
        )
        return Expected(self.plan, costs, step)

    @property
    def activation_limits(self) -> Floats | None:
        """Bytes that every rank has for activations; None without a limit."""
        if self.plan.memory_bytes is None:
            return None
        limits: Floats = np.subtract(self.plan.memory_bytes, self.plan.forecast.weight_bytes)
        return limits

    def outcome(self, measured_ms: float, timelines: Sequence[Timeline]) -> Iterator[str]:
        """Say in a line how far a step was from its forecast and, if far, what differed most.

        Args:
            measured_ms: time from step to step as it was.
            timelines: measured; there may be none.
        """
        ratio = measured_ms / self.step_ms - 1
        yield (
            f"step time: forecast {self.step_ms:.1f} ms, measured {measured_ms:.1f} ms "
            f"({ratio:+.1%})"
        )
        if abs(ratio) > TOLERANCE and timelines:
            yield (
                f"warning: measurement and forecast differ by more than {TOLERANCE:.0%}: "
                f"{self._explain(measured_ms - self.step_ms, timelines)}"
            )

    def _explain(self, excess_ms: float, timelines: Sequence[Timeline]) -> str:
        """Say whether the ops of the busiest rank account for the difference, and which do most."""
        rank = int(np.argmax(timelines[-1].work_per_rank))
        stages = self.plan.schedule.placement.stages_of(rank)
        found = deviations(timelines, self.costs)
        of_ops = sum(each.per_step_ms for each in found if each.stage in stages)
        if of_ops / excess_ms < _SHARE_OF_OPS:
            return (
                f"the ops of rank {rank}, the busiest, account for {of_ops:+.1f} ms of "
                f"{excess_ms:+.1f} ms a step; the rest is the optimizer, or waiting for messages "
                "or for what else runs on the machine"
            )
        parts = [
            f"{each.kind.name} of stage {each.stage} ({_layers(self.plan, each.stage)}) "
            f"{each.measured_ms:.2f} ms instead of {each.expected_ms:.2f} ({each.num_ops} a step)"
            for each in found[:_NUM_NAMED]
            if each.per_step_ms * excess_ms > 0
        ]
        return (
            f"the ops that differ most: {'; '.join(parts)}. Profile again on this machine, or "
            "--replan-after some steps"
        )


def _layers(plan: Plan, stage: int) -> str:
    begin = sum(plan.layers_per_stage[:stage])
    names = plan.layer_names[begin : begin + plan.layers_per_stage[stage]]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
