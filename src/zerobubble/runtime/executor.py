"""How does a rank execute its program? One loop, which knows no schedule."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from zerobubble.errors import PipelineError
from zerobubble.ir import Kind, Op
from zerobubble.lower import Action, Instruction, Program
from zerobubble.runtime.failure import describe
from zerobubble.runtime.messages import Messages
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.trace import Recorder
from zerobubble.runtime.watch import watch

Call = Callable[[], object]


class Owner(Protocol):
    """What an executor cannot do by itself."""

    def report_loss(self) -> None:
        """Send the loss to the other ranks."""

    def validate(self) -> bool:
        """Settle the optimizer's last step; say whether forwards ran with wrong parameters."""

    def begin_again(self) -> None:
        """Bring stages, batch and generators back to where the step began."""


class Executor:
    """Binds every instruction of a program, once, to what carries it out.

    Args:
        program: what to execute.
        owner: reports the loss, validates, begins again.
        stages: the stages of this rank by number.
        messages: carries out the instructions on messages.
        recorder: notes the times of the ops; None for programs that are not timed.
    """

    def __init__(
        self,
        program: Program,
        owner: Owner,
        stages: Mapping[int, Stage],
        messages: Messages,
        recorder: Recorder | None = None,
    ) -> None:
        self.rank = program.rank
        self.owner = owner
        self.messages = messages
        self.recorder = recorder
        self._is_refuted = False
        first = len(program.to_validation)
        calls = [(i, self._bind(i, stages)) for i in program.instructions]
        self._plain = calls[:first], calls[first:]
        recorded = [(i, self._recorded(i, call)) for i, call in calls]
        self._timed = recorded[:first], recorded[first:]
        self._retreat = [(i, self._bind(i, stages)) for i in program.retreat]
        self._sent = [op for action, op, _ in program.instructions if action is Action.SEND]

    def _bind(self, instruction: Instruction, stages: Mapping[int, Stage]) -> Call:
        action, op, _ = instruction
        if action is Action.REPORT:
            return self.owner.report_loss
        if action is Action.VALIDATE:
            return self._validate
        if action is not Action.RUN:
            return self.messages.bind(instruction)
        return partial(_method(stages[op.stage], op), op.microbatch)

    def _recorded(self, instruction: Instruction, call: Call) -> Call:
        """Give the call that also records when the instruction is carried out."""
        if self.recorder is None or instruction.action not in (Action.RUN, Action.SEND):
            return call
        record = self.recorder.run if instruction.action is Action.RUN else self.recorder.send
        return partial(record, call)

    def run(self, step: int) -> None:
        """Execute the program once, with a second beginning if the first one is refuted.

        Raises:
            PipelineError: an instruction failed, here or on the rank it waits for.
        """
        recorder = self.recorder
        if recorder is not None and not recorder.begin_step(step):
            recorder = None
        to_validation, rest = self._plain if recorder is None else self._timed
        self._execute(to_validation, step)
        if self._is_refuted:
            self._execute(self._retreat, step)
            self.owner.begin_again()
            if recorder is not None:
                recorder.begin_again()
            self._execute(to_validation, step)
        self._execute(rest, step)
        if recorder is not None:
            recorder.end_step(self.messages.sizes_of(self._sent))

    def _execute(self, calls: Iterable[tuple[Instruction, Call]], step: int) -> None:
        instruction = None
        try:
            for instruction, call in calls:
                if instruction.action is Action.RUN:
                    watch.begin(instruction.op)
                call()
        except PipelineError:
            raise
        except Exception as error:
            assert instruction is not None
            raise describe(error, self.rank, step, instruction) from error

    def _validate(self) -> None:
        self._is_refuted = self.owner.validate()


def _method(stage: Stage, op: Op) -> Callable[[int], None]:
    methods: dict[Kind, Callable[[int], None]] = {
        Kind.F: stage.forward,
        Kind.B: stage.backward_input,
        Kind.W: stage.backward_weight,
        Kind.BW: stage.backward,
        Kind.O: stage.offload,
        Kind.L: stage.load,
        Kind.R: stage.repeat,
    }
    return methods[op.kind]
