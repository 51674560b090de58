"""What was a pipeline given, whether as layers or as a model, with a schedule or a plan?"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zerobubble.errors import UsageError
from zerobubble.ir import Schedule
from zerobubble.plan.data import Plan
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.partition import Layer, numbered, split_layers
from zerobubble.runtime.stage import LossFunction
from zerobubble.verify import verify


@dataclass(frozen=True)
class Given:
    """What every pipeline has: see the arguments of ``Pipeline``."""

    layers: Sequence[Layer]
    layers_of_stage: list[range]
    schedule: Schedule
    loss_fn: LossFunction
    tied: list[Sequence[str]]
    parameter_name: Callable[[int, str], str]


def unpack(
    model: Sequence[Layer] | LayeredModel,
    schedule: Schedule | Plan,
    loss_fn: LossFunction | None = None,
    layers_per_stage: Sequence[int] | None = None,
    tied: Iterable[Sequence[str]] = (),
) -> Given:
    """Take what a model and a plan bring along, and what was given besides.

    Raises:
        UsageError: something is missing, given twice, or does not fit the rest.
        ScheduleError: the schedule breaks a rule.
    """
    for what, value in (("layers", model), ("tied", tied)):
        if isinstance(value, str) or not isinstance(value, LayeredModel | Iterable):
            kind = "groups of names" if what == "tied" else "modules or builders, or a LayeredModel"
            raise UsageError(f"{what} must be a list of {kind}, not {value!r}")
    names, tied = None, list(tied)
    parameter_name: Callable[[int, str], str] = numbered
    if isinstance(model, LayeredModel):
        names, parameter_name, tied = model.layer_names, model.parameter_name, [*model.tied, *tied]
        loss_fn = loss_fn or model.loss_fn
    layers = list(model.layers if isinstance(model, LayeredModel) else model)
    if loss_fn is None:
        raise UsageError("loss_fn is missing: give what maps the last output and the target to it")
    if isinstance(schedule, Plan):
        if layers_per_stage is not None:
            raise UsageError("layers_per_stage is part of the plan: do not give it again")
        _must_be_for(schedule, len(layers), names)
        layers_per_stage, schedule = schedule.layers_per_stage, schedule.schedule
    if not isinstance(schedule, Schedule):
        raise UsageError(
            f"schedule must be a Schedule, such as zb.build gives, or a Plan, not {schedule!r}"
        )
    verify(schedule)
    layers_of_stage = split_layers(len(layers), schedule.num_stages, layers_per_stage)
    return Given(layers, layers_of_stage, schedule, loss_fn, tied, parameter_name)


def _must_be_for(plan: Plan, num_layers: int, names: tuple[str, ...] | None) -> None:
    if len(plan.layer_names) != num_layers:
        raise UsageError(
            f"the plan is for {plan.model} with {len(plan.layer_names)} layers, but the model has "
            f"{num_layers}: plan for this model"
        )
    for number, (planned, name) in enumerate(zip(plan.layer_names, names or (), strict=False)):
        if planned != name:
            raise UsageError(
                f"layer {number} of the plan is {planned!r} of {plan.model}, but the model has "
                f"{name!r} there: plan for this model"
            )
