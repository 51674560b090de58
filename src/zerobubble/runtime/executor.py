"""How does a rank execute its program? One loop, which knows no schedule."""

from collections.abc import Callable, Mapping
from functools import partial

from zerobubble.errors import PipelineError
from zerobubble.ir import Kind, Op
from zerobubble.lower import Action, Instruction, Program
from zerobubble.runtime.failure import describe
from zerobubble.runtime.messages import Messages
from zerobubble.runtime.stage import Stage
from zerobubble.runtime.trace import Recorder

Call = Callable[[], None]


class Executor:
    """Binds every instruction of a program, once, to what carries it out.

    Args:
        program: what to execute.
        stages: the stages of this rank by number.
        messages: carries out the instructions on messages.
        recorder: notes the times of the ops; None for programs that are not timed.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage],
        messages: Messages,
        recorder: Recorder | None = None,
    ) -> None:
        self.rank = program.rank
        self.messages = messages
        self.recorder = recorder
        self._calls = [(i, self._bind(i, stages)) for i in program.instructions]

    def _bind(self, instruction: Instruction, stages: Mapping[int, Stage]) -> Call:
        action, op, _ = instruction
        if action is not Action.RUN:
            return self.messages.bind(instruction)
        run = _method(stages[op.stage], op)
        if self.recorder is None:
            return partial(run, op.microbatch)
        return partial(self.recorder.run, run, op.microbatch)

    def run(self, step: int) -> None:
        """Execute the program once.

        Raises:
            PipelineError: an instruction failed, here or on the rank it waits for.
        """
        if self.recorder is not None:
            self.recorder.begin_step()
        instruction = None
        try:
            for instruction, call in self._calls:  # noqa: B007
                call()
        except PipelineError:
            raise
        except Exception as error:
            assert instruction is not None
            raise describe(error, self.rank, step, instruction) from error


def _method(stage: Stage, op: Op) -> Callable[[int], None]:
    methods: dict[Kind, Callable[[int], None]] = {
        Kind.F: stage.forward,
        Kind.B: stage.backward_input,
        Kind.W: stage.backward_weight,
        Kind.BW: stage.backward,
    }
    return methods[op.kind]
