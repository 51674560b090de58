"""What does every layer of a model cost on the devices that are here?"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from zerobubble.autograd import ready_to_defer
from zerobubble.errors import UsageError
from zerobubble.profile import LayerCosts, Profile
from zerobubble.profiling.asked import is_count, require_settings
from zerobubble.profiling.layers import LayerRuns, Profiled, profile_layers
from zerobubble.profiling.links import all_pairs, measure_host_link, measure_links
from zerobubble.profiling.one_layer import LayerRun, LayerStage, count_held
from zerobubble.profiling.optimizer_step import measure_weights
from zerobubble.profiling.overhead import measure_overhead
from zerobubble.profiling.ranks import Ranks
from zerobubble.profiling.timing import Stopwatch
from zerobubble.runtime.boundary import Layout
from zerobubble.runtime.device import autocast as build_autocast
from zerobubble.runtime.device import find_device
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.partition import build_layer
from zerobubble.runtime.transport import Transport

_IN_FLIGHT = 3
_MOST_COPIES = 12
_BYTES_OF_COPIES = 2**28


def measure(
    model: LayeredModel,
    *,
    num_ranks: int,
    microbatch_sizes: Sequence[int],
    device: str | torch.device = "cpu",
    autocast: torch.dtype | None = None,
    optimizer: str = "adamw",
    validate: str = "post",
    seconds: float = 2.0,
    least_rounds: int = 5,
) -> Profile:
    """Measure every distinct layer on this rank's device, on all ranks at the same time.

    Ranks of one machine share its memory bandwidth and caches, so each measures while the others
    do. A layer runs as in a pipeline: through stages of the runtime, with several microbatches in
    flight, and on a CPU several copies of it one after the other, because the layers of a stage
    push each other's weights out of the caches. Medians are taken over repetitions and ranks.

    Args:
        model: whose layers are built one at a time, like ones once.
        num_ranks: as many as there are processes, which all make this call.
        microbatch_sizes: in samples.
        device: where this rank computes: ``cpu``, ``cuda`` or ``cuda:1``.
        autocast: dtype of mixed precision; None for none.
        optimizer: only ``adamw``.
        validate: ``post`` or ``sync``, as for ``Pipeline.optimizer``.
        seconds: about how long each layer is timed for each size, as long split as plain; rounds
            of both take turns, so that load on the machine meets both alike.
        least_rounds: how often at least.

    Raises:
        UsageError: a layer cannot be run, or returns what cannot travel; the message names it.
    """
    require_settings(model, microbatch_sizes, optimizer, validate)
    _require_numbers(num_ranks, seconds, least_rounds)
    place = find_device(device)
    transport = Transport(place, num_ranks, all_pairs(num_ranks))
    ranks = Ranks(transport, seconds, least_rounds)
    link, links = measure_links(transport)
    overhead_ms = measure_overhead(place, num_ranks, validate, link)

    def run(module: nn.Module, tasks: LayerRuns) -> Mapping[int, Profiled]:
        weights = measure_weights(module, ranks, validate)
        context = build_autocast(place, autocast)
        return {
            size: _profiled(module, replace(task, autocast=context), ranks, weights)
            for size, task in tasks.items()
        }

    with ready_to_defer():
        tables = profile_layers(
            model,
            sorted(set(microbatch_sizes)),
            build=lambda number: build_layer(model.layers[number], number, seed=0).to(place),
            run=run,
            place=lambda tensor: tensor.to(place),
        )
    return Profile(
        model=model.name,
        device=_name(place),
        layer_names=model.layer_names,
        layers=tables,
        link=link,
        links=links,
        step_overhead_ms=overhead_ms,
        memory_bytes=_memory_bytes(place),
        host=measure_host_link(place),
    )


def _require_numbers(num_ranks: int, seconds: float, least_rounds: int) -> None:
    for what, count in (("num_ranks", num_ranks), ("least_rounds", least_rounds)):
        if not is_count(count):
            raise UsageError(f"{what} must be a whole number of 1 or more, not {count!r}")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 < seconds < math.inf):
        raise UsageError(f"seconds must be a number above 0, not {seconds!r}")


def _profiled(module: nn.Module, task: LayerRun, ranks: Ranks, weights: LayerCosts) -> Profiled:
    held = count_held(module, task)
    layout = held.output.layout if held.output else None
    split, plain = map(ranks.medians, _time_ops(module, task, layout, ranks))
    costs = replace(
        weights,
        forward_ms=split["F"],
        backward_input_ms=split["B"],
        backward_weight_ms=split["W"],
        plain_forward_ms=plain["F"],
        plain_backward_ms=plain["BW"],
        **held.as_costs(task),
    )
    return Profiled(costs, held.output)


def _time_ops(
    module: nn.Module, task: LayerRun, layout: Layout | None, ranks: Ranks
) -> tuple[dict[str, float], dict[str, float]]:
    """Time the ops of a split and of a plain backward, whose rounds take turns."""
    copies = _copies(module, ranks.transport.device)

    def layers_of(splits_backward: bool) -> _Layers:
        stages = [
            LayerStage(each, task, splits_backward=splits_backward, num_in_flight=_IN_FLIGHT)
            for each in copies
        ]
        return _Layers(stages, layout, Stopwatch(ranks.transport.device))

    split, plain = layers_of(True), layers_of(False)

    def clear() -> None:
        split.watch.clear()
        plain.watch.clear()

    split.begin_gradients()  # of the parameters, which both share
    ranks.repeat([split.run_round, plain.run_round], clear)
    split.drop_gradients()
    return split.watch.medians_ms(), plain.watch.medians_ms()


def _copies(module: nn.Module, device: torch.device) -> list[nn.Module]:
    """Copy a layer so that the weights of one are pushed out of the caches by the others."""
    num_bytes = sum(parameter.nbytes for parameter in module.parameters())
    fitting = _BYTES_OF_COPIES // max(1, num_bytes)
    num = 1 if device.type == "cuda" else max(1, min(_MOST_COPIES, fitting))
    return [module, *(copy.deepcopy(module) for _ in range(num - 1))]


@dataclass
class _Layers:
    """Copies of a layer that run one after the other, as the layers of a stage."""

    copies: list[LayerStage]
    layout: Layout | None
    watch: Stopwatch

    def begin_gradients(self) -> None:
        for each in self.copies:
            each.begin_gradients()

    def drop_gradients(self) -> None:
        for each in self.copies:
            each.drop_gradients()

    def run_round(self) -> None:
        """Run F of all microbatches, then B of each with the W of the one before."""
        for microbatch in range(_IN_FLIGHT):
            for each in self.copies:
                self._forward(each, microbatch)
        for microbatch in range(_IN_FLIGHT):
            for each in reversed(self.copies):
                self._backward(each, microbatch)
            for each in reversed(self.copies):
                if each.stage.splits_backward:
                    self.watch.run("W", partial(each.stage.backward_weight, microbatch))

    def _forward(self, each: LayerStage, microbatch: int) -> None:
        each.give_input(microbatch, each.task.boundary.copy())
        self.watch.run("F", partial(each.stage.forward, microbatch))
        each.take_output(microbatch)

    def _backward(self, each: LayerStage, microbatch: int) -> None:
        each.give_gradients(microbatch, self.layout)
        if each.stage.splits_backward:
            self.watch.run("B", partial(each.stage.backward_input, microbatch))
        else:
            self.watch.run("BW", partial(each.stage.backward, microbatch))
        each.end(microbatch)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _memory_bytes(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)
