"""What does a user hold? A Pipeline: layers and a schedule in, training steps out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zerobubble.autograd import ready_to_defer, ready_to_recompute_light, recomputing_light
from zerobubble.costs import Costs
from zerobubble.errors import PipelineError, UsageError
from zerobubble.ir import Schedule
from zerobubble.lower import Program, lower
from zerobubble.measured import MeasuredRun
from zerobubble.plan.data import Plan
from zerobubble.runtime.agreement import Agreement, must_be_the_same
from zerobubble.runtime.beginning import Beginning
from zerobubble.runtime.device import autocast as build_autocast
from zerobubble.runtime.device import find_device
from zerobubble.runtime.executor import Executor
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.given import Given, unpack
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.loss import LossReport
from zerobubble.runtime.loss_scaler import LossScaler, find_loss_scaler
from zerobubble.runtime.master_weights import build_weights
from zerobubble.runtime.model_state import load_together, model_state
from zerobubble.runtime.offload import Offload, Offloading
from zerobubble.runtime.optimizer import PipelineOptimizer
from zerobubble.runtime.partition import Layer, build_stage
from zerobubble.runtime.randomness import Randomness
from zerobubble.runtime.running import Running, pairs
from zerobubble.runtime.stage import LossFunction, Stage, in_evaluation_mode
from zerobubble.runtime.tied import TiedParameters, refuse_shared
from zerobubble.runtime.trace import Recorder, gather_run
from zerobubble.runtime.transport import Transport
from zerobubble.runtime.watch import watch
from zerobubble.simulate import Timeline
from zerobubble.verify import verify

_BETWEEN = "what comes between steps"
# Around the forward of a stage, and around a whole step.
_RECOMPUTING: dict[str, tuple[Callable[[], AbstractContextManager[Any]], ...]] = {
    "off": (nullcontext, nullcontext),
    "light": (recomputing_light, ready_to_recompute_light),
}


class Pipeline:
    """A model cut into stages over the ranks of a schedule; every rank makes the same calls.

    Args:
        layers: of the whole model, in order, one value flowing through: modules, or callables
            without arguments that build one. A rank builds only those it holds. Or a
            ``LayeredModel``, which brings its loss, names and tied parameters along.
        schedule: what every rank runs, for as many ranks as there are processes; or a ``Plan``,
            which brings its partition along.
        loss_fn: maps output and target of a microbatch to a scalar, the mean over its samples or
            their sum.
        layers_per_stage: how many layers each stage has; by default they are shared evenly.
        loss_reduction: of what ``loss_fn`` gives: ``mean`` or ``sum``; so is the loss of a batch.
        tied: groups of parameters with one value, each named ``layer number.parameter name``.
        device: where this rank computes: ``cpu``, ``cuda`` or ``cuda:1``.
        seed: of the initial values of layers given as callables, and of what forwards draw.
        autocast: dtype of mixed precision, such as ``torch.bfloat16``; None for none.
        recompute: ``light``: B computes norms, activation functions and dropout again, so that
            fewer activations are kept, with the same bits; ``off``: all of them are kept.
        timeout: how many seconds a rank waits for another before all end; the error names who has
            been at work for the longest.
        num_recorded_steps: of how many last steps ``timelines`` and ``measured_run`` tell.
        recorded_steps: the numbers of the steps of which they tell instead; the first step is 1.
        offload: where the activations wait that the schedule offloads; None: in host memory.

    Raises:
        UsageError: layers, stages, ranks or devices do not fit together.
        ScheduleError: the schedule breaks a rule.

    >>> import zerobubble as zb
    >>> layers = [nn.Linear(4, 4), nn.Linear(4, 1)]
    >>> schedule = zb.build("zb-h1", num_ranks=1, num_microbatches=2)
    >>> pipe = Pipeline(layers, schedule, nn.functional.mse_loss)
    >>> opt = pipe.optimizer(torch.optim.SGD, lr=0.1, max_grad_norm=1.0)
    >>> loss = pipe.step(torch.ones(8, 4), torch.ones(8, 1))
    >>> opt.step()
    >>> bool(pipe.eval(torch.ones(8, 4), torch.ones(8, 1)) < loss)
    True
    """

    def __init__(
        self,
        layers: Sequence[Layer] | LayeredModel,
        schedule: Schedule | Plan,
        loss_fn: LossFunction | None = None,
        *,
        layers_per_stage: Sequence[int] | None = None,
        loss_reduction: str = "mean",
        tied: Iterable[Sequence[str]] = (),
        device: str | torch.device = "cpu",
        seed: int = 0,
        autocast: torch.dtype | None = None,
        recompute: str = "off",
        timeout: float = 600.0,
        num_recorded_steps: int = 1,
        recorded_steps: range | None = None,
        offload: Offload | None = None,
    ) -> None:
        if loss_reduction not in ("mean", "sum"):
            raise UsageError(f"loss_reduction must be 'mean' or 'sum', not {loss_reduction!r}")
        if recompute not in _RECOMPUTING:
            hint = ": for that, run a schedule with ops R" if recompute == "full" else ""
            raise UsageError(f"recompute must be 'off' or 'light', not {recompute!r}{hint}")
        given = unpack(layers, schedule, loss_fn, layers_per_stage, tied)
        self.layers_of_stage = given.layers_of_stage
        self._failure: PipelineError | None = None
        self._ready_to_recompute = _RECOMPUTING[recompute][1]
        self.device = find_device(device)
        placement, programs = given.schedule.placement, lower(given.schedule)
        self._transport = Transport(self.device, placement.num_ranks, pairs(programs), timeout)
        self.rank = self._transport.rank
        refuse_shared(given.layers, self.layers_of_stage, placement)
        self.ledger = Ledger()
        steps = num_recorded_steps if recorded_steps is None else recorded_steps
        self._recorder = Recorder(self.device, steps)
        self._randomness = Randomness(seed, self.device)
        # Ranks in the order of their first stages: messages along it meet only who is ahead.
        self._chain = list(dict.fromkeys(placement.stage_to_rank))
        with naming_the_cause(self.rank, "building of the stages"):
            self.offloading = Offloading(offload or Offload(), self.device, self.rank)
            self._recorder.copies = self.offloading.marks
            build = partial(self._build_stage, given, seed, loss_reduction, autocast, recompute)
            self.stages = {s: build(s) for s in placement.stages_of(self.rank)}
            self._running = self._run_by(given.schedule, programs)
        with naming_the_cause(self.rank, "tying of parameters"):
            self._tied = TiedParameters(
                given.tied,
                {
                    name: parameter
                    for stage in self.stages.values()
                    for name, parameter in stage.module.numbered_parameters().items()
                },
                [s for s, numbers in enumerate(self.layers_of_stage) for _ in numbers],
                placement,
                self.rank,
            )
            self._tied.copy_values()
        self._loss = LossReport(self._transport, placement.stage_to_rank[-1])
        self._optimizers: list[PipelineOptimizer] = []
        self._beginning: Beginning | None = None
        self.num_steps = 0
        self._losses: dict[int, Tensor] = {}
        watch.begin(_BETWEEN)

    def _build_stage(
        self,
        given: Given,
        seed: int,
        loss_reduction: str,
        autocast: torch.dtype | None,
        recompute: str,
        number: int,
    ) -> Stage:
        numbers = self.layers_of_stage[number]
        return Stage(
            number,
            build_stage(given.layers, numbers, seed, self.device, given.parameter_name),
            loss_fn=given.loss_fn if number == given.schedule.num_stages - 1 else None,
            sums_losses=loss_reduction == "sum",
            autocast=build_autocast(self.device, autocast),
            recomputing=_RECOMPUTING[recompute][0],
            ledger=self.ledger,
            randomness=self._randomness,
            offloading=self.offloading,
        )

    def _run_by(self, schedule: Schedule, programs: Sequence[Program]) -> Running:
        rest = (self.stages, self._chain, self._transport, self.ledger, self._recorder, self)
        return Running(schedule, programs, *rest)

    @property
    def schedule(self) -> Schedule:
        """What the ranks run."""
        return self._running.schedule

    def change_schedule(self, schedule: Schedule) -> None:
        """Run another schedule from the next step on; all ranks must call this together.

        With as many microbatches as before, losses and parameters keep their bits.

        Args:
            schedule: with the placement of the one that runs.

        Raises:
            UsageError: the placement is another one, which would need other stages.
            ScheduleError: the schedule breaks a rule.
        """
        if not isinstance(schedule, Schedule):
            raise UsageError(f"schedule must be a Schedule, not {schedule!r}")
        if schedule.placement != self.schedule.placement:
            raise UsageError(
                f"the stages are placed as {self.schedule.placement}, but the new schedule wants "
                f"{schedule.placement}: build a new pipeline for it"
            )
        verify(schedule)
        for optimizer in self._optimizers:
            optimizer.synchronize()
        with naming_the_cause(self.rank, "change of the schedule"):
            self._running = self._run_by(schedule, lower(schedule))
        self._recorder.clear()

    @property
    def transport(self) -> Transport:
        """The connections of this rank to the others."""
        return self._transport

    @property
    def recorder(self) -> Recorder:
        """What notes when the ops and sends of this rank happen."""
        return self._recorder

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """List this rank's parameters under their names in the whole model, in its order.

        As in torch, one that several layers share has the name of the first one only.
        """
        first_names: dict[nn.Parameter, str] = {}
        for stage in self.stages.values():
            for name, parameter in stage.module.numbered_parameters().items():
                first_names.setdefault(parameter, stage.module.name_in_model(name))
        return [(name, parameter) for parameter, name in first_names.items()]

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        max_grad_norm: float | None = None,
        validate: str = "sync",
        loss_scaler: LossScaler | torch.amp.GradScaler | None = None,
        master_weights: bool = False,
        offload_state: bool = False,
        **options: Any,
    ) -> PipelineOptimizer:
        """Wrap an optimizer so that its step agrees over all ranks; all must make the same call.

        Args:
            optimizer: a class, built with ``options`` for this rank's trainable parameters, or an
                instance made from ``named_parameters``.
            max_grad_norm: clip gradients to this norm over the whole model; None: never.
            validate: ``sync``: all ranks wait for the norm before any steps; ``post``: they step
                at once, and correct that in the next step if it turns out wrong.
            loss_scaler: by which the loss is scaled and gradients are unscaled; its scale follows
                the steps.
            master_weights: step float32 copies of parameters in bfloat16 and float16.
            offload_state: keep the state of AdamW, Adam or SGD in host memory, of which at most
                two buckets (``attempt.BUCKET_BYTES``) are on the device; master weights stay.
            options: keywords of the optimizer class, such as ``lr``.

        Raises:
            UsageError: ``validate`` is unknown, the options do not fit, there is a loss scaler for
                one of several optimizers, or the state of this class cannot be offloaded.
        """
        scaler = find_loss_scaler(loss_scaler)
        if self._optimizers and (scaler or self._optimizers[0].loss_scaler):
            raise UsageError("a loss scaler serves only one optimizer of a pipeline: make one")
        number = len(self._optimizers)
        agreement = Agreement(self._transport, self._chain, number, max_grad_norm)
        parameters = dict(self.named_parameters())
        weights = build_weights(optimizer, parameters, options, master_weights)
        wrapped = PipelineOptimizer(
            weights,
            agreement,
            self._tied,
            validate=validate,
            loss_scaler=scaler,
            offload_state=offload_state,
        )
        with naming_the_cause(self.rank, "building of an optimizer"):
            settings = {"number of optimizers": number, "max_grad_norm": max_grad_norm}
            must_be_the_same(self._transport, settings | wrapped.settings)
            self._tied.must_be_claimed_by_all(weights.all_working)
        self._optimizers.append(wrapped)
        for stage in self.stages.values():
            stage.loss_scaler = scaler
        return wrapped

    def step(self, x: Any = None, y: Any = None, **keywords: Any) -> Tensor:
        """Run forward and backward for one batch; gradients are added to ``.grad``.

        Args:
            x: the model's input, read on the rank of the first stage: a tensor, or tensors in
                tuples, lists and dicts, each with the samples along its first dimension.
            y: the target, read on the rank of the last stage, likewise.
            keywords: read on the ranks with layers whose forwards name them, likewise.

        A batch that cannot be shared evenly makes its first microbatches one sample larger; in the
        mean, each then counts by its samples. What is wrapped in ``Whole`` goes to every microbatch
        as it is.

        Returns:
            The loss of the batch, a scalar without a graph, on every rank.

        Raises:
            UsageError: there are fewer samples than microbatches, tensors with other numbers of
                samples, or a keyword that no layer takes.
            PipelineError: an op failed on this or another rank; no further step is possible.
        """
        self.num_steps += 1
        for optimizer in self._optimizers:
            optimizer.agreement.expect()
        splits = any(stage.splits_backward for stage in self.stages.values())
        deferring = ready_to_defer() if splits else nullcontext()
        with deferring, self._ready_to_recompute(), self._randomness.of_step(self.num_steps):
            return self._run(self._running.training, x, y, keywords, "train")

    @torch.no_grad()
    def eval(self, x: Any = None, y: Any = None, **keywords: Any) -> Tensor:
        """Compute the loss of one batch without gradients; arguments as for ``step``.

        All modules are in evaluation mode meanwhile, and in their own modes again afterwards.
        """
        for optimizer in self._optimizers:
            optimizer.synchronize()
        with in_evaluation_mode(self.stages.values()):
            return self._run(self._running.evaluation, x, y, keywords, "eval")

    def state_dict(self) -> dict[str, Any]:
        """Give this rank's parameters and buffers; all ranks must call this together.

        Names are those of the ``LayeredModel``, else of an ``nn.Sequential`` of all layers, which
        loads the merged states of all ranks. As in torch, the tensors are the model's own.
        """
        for optimizer in self._optimizers:
            optimizer.synchronize()
        return model_state(stage.module for stage in self.stages.values())

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's part out of a state of it or of the whole model; all ranks together.

        Raises:
            UsageError: a name is missing, unexpected, or has another shape, on any rank; then
                none loads anything.
        """
        for optimizer in self._optimizers:
            optimizer.synchronize()
        with naming_the_cause(self.rank, "loading of a state"):
            load_together([s.module for s in self.stages.values()], state, self._transport)
            self._tied.copy_values()
        for optimizer in self._optimizers:
            optimizer.take_parameters()

    def timelines(self) -> list[Timeline]:
        """Gather the measured timelines of the last steps on rank 0; empty on other ranks.

        Times are in milliseconds. All ranks must call this together.
        """
        run = self.measured_run()
        return [] if run is None else [step.timeline for step in run.steps]

    def measured_run(self, expected_costs: Costs | None = None) -> MeasuredRun | None:
        """Gather the recorded steps with their transfers on rank 0; None on other ranks.

        All ranks must call this together.

        Args:
            expected_costs: with times in ms, to be told beside what was measured; the memory curves
                of the timelines are in their unit.

        Raises:
            UsageError: the costs are for another number of stages.
        """
        if expected_costs is not None:
            expected_costs.require_stages(self.schedule.num_stages, "the pipeline")
        with naming_the_cause(self.rank, "gathering of timelines"):
            return gather_run(self._recorder, self.schedule, self._transport, expected_costs)

    def _run(
        self, executor: Executor, x: Any, y: Any, keywords: Mapping[str, Any], purpose: str
    ) -> Tensor:
        if self._failure is not None:
            raise PipelineError(f"this pipeline has stopped: {self._failure}: build it anew")
        try:
            with naming_the_cause(self.rank, f"start of step {self.num_steps}"):
                steps = [(each.num_steps, each.is_pending) for each in self._optimizers]
                intention = f"{purpose} {steps}"
                running = self._running
                batch = running.announcements.take(x, y, keywords, intention, self.num_steps)
                running.messages.begin(running.layouts[purpose, batch.signature], batch.sizes)
                batch.give(self.stages, self.schedule.num_stages)
                self._loss.expect()
            if any(optimizer.is_pending for optimizer in self._optimizers):
                modules = [stage.module for stage in self.stages.values()]
                self._beginning = Beginning(batch, modules, self.device)
            executor.run(self.num_steps)
            self._running.messages.end()
            self._keep_losses()
            holder = None if self._loss.holder == self.rank else self._loss.holder
            with naming_the_cause(self.rank, f"loss of step {self.num_steps}", holder):
                return self._loss.wait()
        except PipelineError as error:
            self._failure = error
            raise
        except UsageError as error:
            if self.schedule.num_ranks > 1:  # the others have begun this step, or soon will
                self._failure = PipelineError(str(error))
            raise
        finally:
            watch.begin(_BETWEEN)
            self._running.messages.reset()
            self._beginning = None
            for stage in self.stages.values():
                stage.reset()
            if self._failure is not None:
                self.offloading.close()

    def validate(self) -> bool:
        """Carry out VALIDATE of the program; only its executor calls this."""
        refuted = [optimizer for optimizer in self._optimizers if optimizer.settle()]
        for optimizer in refuted:
            optimizer.num_replayed += 1
        if not refuted:
            self._beginning = None
        return bool(refuted)

    def begin_again(self) -> None:
        """Bring back what the step has changed so far; only the executor calls this."""
        assert self._beginning is not None, "a guess was pending when the step began"
        for stage in self.stages.values():
            stage.reset()
        self._beginning.restore()
        self._beginning.batch.give(self.stages, self.schedule.num_stages)

    def _keep_losses(self) -> None:
        last = self.stages.get(self.schedule.num_stages - 1)
        self._losses = {} if last is None else last.losses

    @property
    def microbatch_losses(self) -> list[Tensor]:
        """What ``loss_fn`` gave in the last ``step`` or ``eval``, in the order of the microbatches.

        They are on the rank of the last stage and its device, without a graph; empty elsewhere.
        """
        return [self._losses[microbatch] for microbatch in sorted(self._losses)]

    def report_loss(self) -> None:
        """Carry out REPORT of the program; only its executor calls this."""
        loss = self.stages[self.schedule.num_stages - 1].loss
        assert loss is not None, "its forwards have run"
        self._loss.send(loss)
