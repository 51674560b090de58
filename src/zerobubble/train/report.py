"""What does a run print? What it will do, how it goes, and what came out."""

import shutil
from collections.abc import Sequence
from statistics import median

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zerobubble.costs import Costs
from zerobubble.plan.data import Plan
from zerobubble.runtime import Pipeline, PipelineOptimizer
from zerobubble.runtime.layered import LayeredModel
from zerobubble.runtime.replanning import Replanned
from zerobubble.runtime.trace import measured_costs
from zerobubble.simulate import Timeline, simulate
from zerobubble.train.config import TrainConfig
from zerobubble.train.data import TextData
from zerobubble.train.layers import parameter_counts
from zerobubble.train.planned import Expected
from zerobubble.train.split import split_lines
from zerobubble.view.text import draw

_WIDTH = 100
_LINES = 20


class Report:
    """Prints the course of a run: a progress bar on a terminal, a line now and then elsewhere.

    Args:
        config: of the run.
        pipe: the pipeline, for its schedule and layers.
        model: that it trains.
        forecast: costs of the stages as they are expected before the run; None if unknown.
        plan: that is followed, if any.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipe: Pipeline,
        model: LayeredModel,
        forecast: Costs | None,
        plan: Plan | None = None,
    ) -> None:
        self.config = config
        self.pipe = pipe
        self.model = model
        self.unit = "bytes"
        self.expected = None if plan is None else Expected.of(plan)
        self.forecast = simulate(pipe.schedule, forecast) if forecast else None
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
        counts = parameter_counts(self.model)
        self.unit = data.unit
        size = self.config.data.batch_size // run.microbatches
        num_bytes = len(data.training_N) + len(data.held_back_N)
        print(
            f"training {sum(counts) / 1e6:.2f} M parameters on {num_bytes / 1e6:.1f} MB of text, "
            f"{len(data.held_back_N) / 1e6:.1f} MB of it held back\n"
            f"schedule {schedule.name}, placement {schedule.placement}: {schedule.num_ranks} ranks,"
            f" {run.microbatches} microbatches of {size} sequences of {data.sequence} {self.unit}"
        )
        for rank in range(schedule.num_ranks):
            ranges = [self.pipe.layers_of_stage[s] for s in schedule.placement.stages_of(rank)]
            names = self.model.layer_names
            layers = ", ".join(f"{names[each[0]]} to {names[each[-1]]}" for each in ranges)
            total = sum(sum(counts[numbers.start : numbers.stop]) for numbers in ranges)
            print(f"rank {rank}: layers {layers}, {total / 1e6:.2f} M parameters")
        for line in split_lines(self.model, schedule, self.pipe.layers_of_stage):
            print(line)
        if self.forecast:
            source = "the FLOPs of each stage"
            if self.expected:
                print(f"forecast step {self.expected.step_ms:.1f} ms")
                source = "the plan"
            print(
                f"forecast bubble {self._bubble(self.forecast):.1%} of {self._bubble_of}, from "
                f"{source}"
            )
        print(f"writing to {folder}", flush=True)
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

    def replanned(self, number: int, found: Replanned) -> None:
        """Note what measured times have led to after a number of steps."""
        before, after = found.before, found.after
        self.forecast = after
        self.step_times_s.clear()
        if self.expected:
            self.expected = self.expected.after(after, found.costs)
        what = "no faster order for the measured times: it stays"
        if after.schedule is not before.schedule:
            what = f"bubble {self._bubble(before):.1%} -> {self._bubble(after):.1%}"
        self._progress.console.print(
            f"replanned after step {number}: {what}", highlight=False, soft_wrap=True
        )

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
        """Bytes or tokens of text that a step trains on in a second."""
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
            f"{self.evaluations[0]:.3f} -> {self.evaluations[-1]:.3f} nats per {self.unit[:-1]}\n"
            f"optimizer: {optimizer.num_steps} steps, {optimizer.num_validated} validated, "
            f"{optimizer.num_clipped} clipped, {optimizer.num_skipped} skipped, "
            f"{optimizer.num_replayed} replayed\n"
            f"step time {self.step_time_s * 1e3:.1f} ms, {self.tokens_per_s:,.0f} tokens/s"
        )
        if self.expected:
            for line in self.expected.outcome(self.step_time_s * 1e3, timelines):
                print(line)
        if timelines:
            again = simulate(self.pipe.schedule, measured_costs(timelines))
            expected = f"forecast {self._bubble(self.forecast):.1%}, " if self.forecast else ""
            print(
                f"bubble of {self._bubble_of}: {expected}"
                f"measured {median(map(self._bubble, timelines)):.1%} (simulated with the measured "
                f"times of the ops {self._bubble(again):.1%})\n"
                f"measured timeline of the last recorded step, {timelines[-1].makespan:.1f} ms:"
            )
            console = self._progress.console
            width = shutil.get_terminal_size((_WIDTH, 0)).columns
            print(draw(timelines[-1], width, console.color_system is not None, fold=True))
