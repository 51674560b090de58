"""What does a user hold? A Pipeline: layers and a schedule in, training steps out."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from zerobubble.autograd import ready_to_defer
from zerobubble.errors import PipelineError, UsageError
from zerobubble.ir import Kind, Schedule
from zerobubble.lower import Action, Program, forward_only, lower
from zerobubble.runtime.agreement import Agreement
from zerobubble.runtime.beginning import Batch, Beginning, take_batch
from zerobubble.runtime.executor import Executor
from zerobubble.runtime.failure import naming_the_cause
from zerobubble.runtime.ledger import Ledger
from zerobubble.runtime.loss import LossReport
from zerobubble.runtime.loss_scaler import LossScaler, find_loss_scaler
from zerobubble.runtime.master_weights import build_weights
from zerobubble.runtime.messages import Layouts, Messages
from zerobubble.runtime.optimizer import PipelineOptimizer
from zerobubble.runtime.partition import Layer, build_stage, split_layers
from zerobubble.runtime.stage import LossFunction, Stage
from zerobubble.runtime.tied import TiedParameters
from zerobubble.runtime.trace import Recorder, gather_timelines
from zerobubble.runtime.transport import Transport
from zerobubble.simulate import Timeline
from zerobubble.verify import verify


class Pipeline:
    """A model cut into stages over the ranks of a schedule; every rank makes the same calls.

    Args:
        layers: of the whole model, in order, one value flowing through: modules, or callables
            without arguments that build one. A rank builds only those it holds.
        schedule: what every rank runs, for as many ranks as there are processes.
        loss_fn: maps output and target of a microbatch to a scalar, the mean over its samples.
        layers_per_stage: how many layers each stage has; by default they are shared evenly.
        tied: groups of parameters with one value, each named ``layer number.parameter name``.
        device: where this rank computes: ``cpu``, ``cuda`` or ``cuda:1``.
        seed: of the initial values of layers given as callables.
        autocast: dtype of mixed precision, such as ``torch.bfloat16``; None for none.
        timeout: after how many seconds of silence another rank counts as lost.
        num_recorded_steps: of how many last steps ``timelines`` tells.

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
        layers: Sequence[Layer],
        schedule: Schedule,
        loss_fn: LossFunction,
        *,
        layers_per_stage: Sequence[int] | None = None,
        tied: Iterable[Sequence[str]] = (),
        device: str | torch.device = "cpu",
        seed: int = 0,
        autocast: torch.dtype | None = None,
        timeout: float = 600.0,
        num_recorded_steps: int = 1,
    ) -> None:
        if not isinstance(schedule, Schedule):
            raise UsageError(
                f"schedule must be a Schedule, such as zb.build gives, not {schedule!r}"
            )
        verify(schedule)
        self.schedule = schedule
        self._failure: PipelineError | None = None
        self.device = find_device(device)
        layers = list(layers)
        self.layers_of_stage = split_layers(len(layers), schedule.num_stages, layers_per_stage)
        programs, evaluations = lower(schedule), lower(forward_only(schedule))
        self._transport = Transport(self.device, schedule.num_ranks, _pairs(programs), timeout)
        self.rank = self._transport.rank
        self._refuse_shared(layers)
        self.ledger = Ledger()
        context = _autocast(self.device, autocast)
        self.stages = {
            s: self._build_stage(s, layers, loss_fn, seed, context)
            for s in schedule.placement.stages_of(self.rank)
        }
        self._tied = TiedParameters(
            tied,
            dict(self.named_parameters()),
            [s for s, numbers in enumerate(self.layers_of_stage) for _ in numbers],
            schedule.placement,
            self.rank,
        )
        self._tied.copy_values()
        self._recorder = Recorder(self.device, num_recorded_steps)
        self._messages = Messages(schedule, self.stages, self._transport, self.ledger)
        # Ranks in the order of their first stages: messages along it meet only who is ahead.
        self._chain = list(dict.fromkeys(schedule.placement.stage_to_rank))
        self._loss = LossReport(self._transport, schedule.placement.stage_to_rank[-1])
        bind = partial(Executor, owner=self, stages=self.stages, messages=self._messages)
        self._training = bind(programs[self.rank], recorder=self._recorder)
        self._evaluation = bind(evaluations[self.rank])
        self._layouts: defaultdict[int, Layouts] = defaultdict(Layouts)
        self._digest = crc32(b"".join(order.tobytes() for order in schedule.orders))
        self._optimizers: list[PipelineOptimizer] = []
        self._beginning: Beginning | None = None
        self.num_steps = 0

    def _build_stage(
        self,
        number: int,
        layers: Sequence[Layer],
        loss_fn: LossFunction,
        seed: int,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> Stage:
        kinds, stages, _ = self.schedule.fields(self.schedule.orders[self.rank])
        return Stage(
            number,
            build_stage(layers, self.layers_of_stage[number], seed, self.device),
            splits_backward=bool(((kinds == Kind.W) & (stages == number)).any()),
            loss_fn=loss_fn if number == self.schedule.num_stages - 1 else None,
            num_parts=self.schedule.num_microbatches,
            autocast=context,
            ledger=self.ledger,
        )

    def _refuse_shared(self, layers: Sequence[Layer]) -> None:
        """Refuse a Parameter object that layers on different ranks share."""
        owners: dict[nn.Parameter, tuple[int, str, int]] = {}
        for stage, numbers in enumerate(self.layers_of_stage):
            rank = self.schedule.placement.stage_to_rank[stage]
            for number in numbers:
                layer = layers[number]
                if not isinstance(layer, nn.Module):
                    continue
                for name, parameter in layer.named_parameters():
                    other, other_name, other_rank = owners.setdefault(
                        parameter, (number, name, rank)
                    )
                    if other_rank != rank:
                        names = f"('{other}.{other_name}', '{number}.{name}')"
                        raise UsageError(
                            f"layers {other} and {number} share a parameter but are on ranks "
                            f"{other_rank} and {rank}: give each its own and pass tied=[{names}]"
                        )

    @property
    def transport(self) -> Transport:
        """The connections of this rank to the others."""
        return self._transport

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under their names in the whole model, in its order."""
        for stage in self.stages.values():
            yield from stage.module.model_parameters().items()

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        max_grad_norm: float | None = None,
        validate: str = "sync",
        loss_scaler: LossScaler | torch.amp.GradScaler | None = None,
        master_weights: bool = False,
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
            options: keywords of the optimizer class, such as ``lr``.

        Raises:
            UsageError: ``validate`` is unknown, the options do not fit, or there is a loss scaler
                for one of several optimizers.
        """
        scaler = find_loss_scaler(loss_scaler)
        if self._optimizers and (scaler or self._optimizers[0].loss_scaler):
            raise UsageError("a loss scaler serves only one optimizer of a pipeline: make one")
        number = len(self._optimizers)
        wrapped = PipelineOptimizer(
            build_weights(optimizer, dict(self.named_parameters()), options, master_weights),
            Agreement(self._transport, self._chain, number, max_grad_norm),
            self._tied,
            validate=validate,
            loss_scaler=scaler,
        )
        self._optimizers.append(wrapped)
        for stage in self.stages.values():
            stage.loss_scaler = scaler
        return wrapped

    def step(self, x: Any = None, y: Any = None) -> Tensor:
        """Run forward and backward for one batch; gradients are added to ``.grad``.

        Args:
            x: the model's input, read on the rank of the first stage: a tensor, or tensors in
                tuples, lists and dicts, each with the samples along its first dimension.
            y: the target, read on the rank of the last stage, likewise.

        Returns:
            The mean loss over the microbatches, a scalar without a graph, on every rank.

        Raises:
            UsageError: the batch cannot be split into the schedule's number of microbatches.
            PipelineError: an op failed on this or another rank; no further step is possible.
        """
        self.num_steps += 1
        for optimizer in self._optimizers:
            optimizer.agreement.expect()
        splits = any(stage.splits_backward for stage in self.stages.values())
        with ready_to_defer() if splits else nullcontext():
            return self._run(self._training, x, y, "train")

    @torch.no_grad()
    def eval(self, x: Any = None, y: Any = None) -> Tensor:
        """Compute the mean loss of one batch without gradients; arguments as for ``step``.

        All modules are in evaluation mode meanwhile, and in their own modes again afterwards.
        """
        for optimizer in self._optimizers:
            optimizer.synchronize()
        modules = [module for stage in self.stages.values() for module in stage.module.modules()]
        modes = [module.training for module in modules]
        try:
            for module in modules:
                module.training = False
            return self._run(self._evaluation, x, y, "eval")
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode

    def timelines(self) -> list[Timeline]:
        """Gather the measured timelines of the last steps on rank 0; empty on other ranks.

        Times are in milliseconds. All ranks must call this together.
        """
        with naming_the_cause(self.rank, "gathering of timelines"):
            return gather_timelines(self._recorder, self.schedule, self._transport)

    def _run(self, executor: Executor, x: Any, y: Any, purpose: str) -> Tensor:
        if self._failure is not None:
            raise PipelineError(f"this pipeline has stopped: {self._failure}: build it anew")
        try:
            with naming_the_cause(self.rank, f"start of step {self.num_steps}"):
                batch = self._take_batch(x, y)
                self._announce(batch.signature, purpose)
                batch.give(self.stages, self.schedule.num_stages)
                self._loss.expect()
            if any(optimizer.is_pending for optimizer in self._optimizers):
                modules = [stage.module for stage in self.stages.values()]
                self._beginning = Beginning(batch, modules, self.device)
            executor.run(self.num_steps)
            self._messages.layouts.is_complete = True
            holder = None if self._loss.holder == self.rank else self._loss.holder
            with naming_the_cause(self.rank, f"loss of step {self.num_steps}", holder):
                return self._loss.wait()
        except PipelineError as error:
            self._failure = error
            raise
        finally:
            self._messages.reset()
            self._beginning = None
            for stage in self.stages.values():
                stage.reset()

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

    def report_loss(self) -> None:
        """Carry out REPORT of the program; only its executor calls this."""
        loss = self.stages[self.schedule.num_stages - 1].loss
        assert loss is not None, "its forwards have run"
        self._loss.send(loss)

    def _take_batch(self, x: Any, y: Any) -> Batch:
        """Take what this rank reads of a batch."""
        last = self.schedule.num_stages - 1
        for stage, what, value in ((0, "x", x), (last, "y", y)):
            if stage in self.stages and value is None:
                raise UsageError(f"rank {self.rank} holds stage {stage} and needs {what}")
        return take_batch(
            x if 0 in self.stages else None,
            y if last in self.stages else None,
            self.schedule.num_microbatches,
            self.device,
        )

    def _announce(self, signature: int, purpose: str) -> None:
        """Pass the signature of the batch from the first stage's rank along the others."""
        transport, position = self._transport, self._chain.index(self.rank)
        intention = crc32(f"{purpose} {self._digest}".encode())
        message = torch.tensor([signature, intention])
        if position > 0:
            before = self._chain[position - 1]
            with naming_the_cause(self.rank, f"start of step {self.num_steps}", before):
                transport.receive_control(message, before)
            if int(message[1]) != intention:
                raise UsageError(
                    f"ranks {before} and {self.rank} do not run the same: all ranks must be given "
                    "the same schedule and call step and eval in the same order"
                )
        transport.flush()  # of the step before: all of it has been read
        for after in self._chain[position + 1 : position + 2]:
            transport.send_control(message, after)
        key = crc32(f"{purpose}{int(message[0])}".encode())
        self._messages.layouts = self._layouts[key]


def _pairs(programs: Sequence[Program]) -> set[tuple[int, int]]:
    """List the (sender, reader) pairs between which messages travel."""
    return {
        (program.rank, instruction.peer)
        for program in programs
        for instruction in program.instructions
        if instruction.action is Action.SEND
    }


def find_device(device: str | torch.device) -> torch.device:
    """Turn a name into a device that is there, or raise a UsageError."""
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device {device!r} is unknown: use cpu, cuda or cuda:0") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not supported: use cpu, cuda or cuda:0")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: no CUDA device is available here: use --device cpu")
    return chosen


def _autocast(
    device: torch.device, dtype: torch.dtype | None
) -> Callable[[], AbstractContextManager[Any]]:
    return nullcontext if dtype is None else partial(torch.autocast, device.type, dtype)
