"""What does a run print? What it will do, how it goes, and what came out."""

import shutil
from collections.abc import Sequence
from statistics import median

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zerobubble.costs import Costs
from zerobubble.runtime import Pipeline, PipelineOptimizer
from zerobubble.runtime.trace import measured_costs
from zerobubble.simulate import Timeline, simulate
from zerobubble.train.config import TrainConfig
from zerobubble.train.data import TextData
from zerobubble.train.model import parameter_counts
from zerobubble.train.split import split_lines
from zerobubble.view.text import draw

_WIDTH = 100
_LINES = 20


class Report:
    """Prints the course of a run: a progress bar on a terminal, a line now and then elsewhere.

    Args:
        config: of the run.
        pipe: the pipeline, for its schedule and layers.
        forecast: costs of the stages as they are expected before the run.
    """

    def __init__(self, config: TrainConfig, pipe: Pipeline, forecast: Costs) -> None:
        self.config = config
        self.pipe = pipe
        self.forecast = simulate(pipe.schedule, forecast)
        self.step_times_s: list[float] = []
        self.losses: list[float] = []
        self.evaluations: list[float] = []
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("", total=config.run.steps, loss=0.0, rate=0.0)

    def begin(self, data: TextData, folder: str) -> None:
        """Say what the run will do."""
        run, schedule = self.config.run, self.pipe.schedule
        counts = parameter_counts(self.config.model)
        size = self.config.data.batch_size // run.microbatches
        num_bytes = len(data.training_N) + len(data.held_back_N)
        print(
            f"training {sum(counts) / 1e6:.2f} M parameters on {num_bytes / 1e6:.1f} MB of text, "
            f"{len(data.held_back_N) / 1e6:.1f} MB of it held back\n"
            f"schedule {schedule.name}, placement {schedule.placement}: {schedule.num_ranks} ranks,"
            f" {run.microbatches} microbatches of {size} sequences of {data.sequence} bytes"
        )
        for rank in range(schedule.num_ranks):
            ranges = [self.pipe.layers_of_stage[s] for s in schedule.placement.stages_of(rank)]
            layers = ", ".join(f"{numbers[0]}-{numbers[-1]}" for numbers in ranges)
            total = sum(sum(counts[numbers.start : numbers.stop]) for numbers in ranges)
            print(f"rank {rank}: layers {layers}, {total / 1e6:.2f} M parameters")
        for line in split_lines(self.config.model, schedule, self.pipe.layers_of_stage):
            print(line)
        print(
            f"forecast bubble {self._bubble(self.forecast):.1%} of {self._bubble_of}, from the "
            f"FLOPs of each stage\nwriting to {folder}",
            flush=True,
        )
        if self._progress.console.is_terminal:
            self._progress.start()

    def step(self, number: int, loss: float, seconds: float) -> None:
        """Note a step, counted from 1."""
        self.losses.append(loss)
        self.step_times_s.append(seconds)
        self._progress.update(self._task, completed=number, loss=loss, rate=self.tokens_per_s)
        every = max(1, self.config.run.steps // _LINES)
        if not self._progress.console.is_terminal and number % every == 0:
            print(
                f"step {number}/{self.config.run.steps}  loss {loss:.3f}  "
                f"{self.tokens_per_s:,.0f} tokens/s",
                flush=True,
            )

    def evaluated(self, number: int, loss: float) -> None:
        """Note an evaluation after a number of steps."""
        self.evaluations.append(loss)
        self._progress.console.print(f"evaluation after step {number}: loss {loss:.3f}")

    @property
    def _is_without_barrier(self) -> bool:
        return self.config.optimizer.validate == "post"

    @property
    def _bubble_of(self) -> str:
        """Name the time of a step that the optimizer leaves: of one rank, or until all are done."""
        return "the span" if self._is_without_barrier else "the makespan"

    def _bubble(self, timeline: Timeline) -> float:
        return timeline.bubble if self._is_without_barrier else timeline.bubble_makespan

    @property
    def tokens_per_s(self) -> float:
        """Bytes of text that a step trains on in a second."""
        return self.config.data.batch_size * self.config.model.sequence / self.step_time_s

    @property
    def step_time_s(self) -> float:
        """Median time of the last steps."""
        return median(self.step_times_s[-50:])

    def end(self, optimizer: PipelineOptimizer, timelines: Sequence[Timeline]) -> None:
        """Say what came out."""
        if self._progress.console.is_terminal:
            self._progress.stop()
        print(
            f"loss: first {self.losses[0]:.3f}, last {self.losses[-1]:.3f}, evaluation "
            f"{self.evaluations[0]:.3f} -> {self.evaluations[-1]:.3f} nats per byte\n"
            f"optimizer: {optimizer.num_steps} steps, {optimizer.num_validated} validated, "
            f"{optimizer.num_clipped} clipped, {optimizer.num_skipped} skipped, "
            f"{optimizer.num_replayed} replayed\n"
            f"step time {self.step_time_s * 1e3:.1f} ms, {self.tokens_per_s:,.0f} tokens/s"
        )
        if timelines:
            again = simulate(self.pipe.schedule, measured_costs(list(timelines)))
            print(
                f"bubble of {self._bubble_of}: forecast {self._bubble(self.forecast):.1%}, "
                f"measured {median(map(self._bubble, timelines)):.1%} (simulated with the measured "
                f"times of the ops {self._bubble(again):.1%})\n"
                f"measured timeline of the last recorded step, {timelines[-1].makespan:.1f} ms:"
            )
            console = self._progress.console
            width = shutil.get_terminal_size((_WIDTH, 0)).columns
            print(draw(timelines[-1], width, console.color_system is not None, fold=True))
