"""What can be set for a training run?

One frozen dataclass per section, :class:`TrainConfig` around them. A name is used by one section
only, so that it is also the flag: ``dim`` of section ``model`` is ``--dim``. A value that cannot
work is refused when the section is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from tyro.conf import arg

from zerobubble.errors import UsageError
from zerobubble.train.rules import (
    nearest_multiples,
    read_range,
    read_size,
    require,
    require_one_of,
)

VOCABULARY = 256
Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "bf16"]
Recompute = Literal["off", "light"]
Validate = Literal["post", "sync"]


@dataclass(frozen=True)
class RunConfig:
    """How the run is laid out."""

    ranks: Annotated[int, arg(aliases=("-p",))] = 2
    """Number of ranks (processes) the pipeline spans."""
    schedule: str = "zb-h1"
    """Name of the schedule, or a schedule file."""
    plan: str = ""
    """Plan file: settles ranks, schedule, partition, microbatches, batch size and validation."""
    replan_after: int = 0
    """Steps after which a schedule for the measured times takes over; 0: never."""
    microbatches: Annotated[int, arg(aliases=("-m",))] = 8
    """Number of microbatches a batch is cut into."""
    steps: int = 200
    """Number of optimizer steps."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    device: Device = "cpu"
    """Kind of device the ranks compute on."""
    precision: Precision = "fp32"
    """Data type of matrix products: float32, or bfloat16 by autocast."""
    recompute: Annotated[str, arg(metavar=f"{{{','.join(get_args(Recompute))}}}")] = "off"
    """What B computes again instead of keeping it: nothing, or norms and activations (light)."""
    threads: int = 0
    """CPU threads of each rank; 0 shares the cores between the ranks of a machine."""
    timeout_s: Annotated[float, arg(aliases=("--timeout",))] = 60.0
    """Seconds a rank waits for another one before the run fails and names who is at work."""
    out: str = "runs/train"
    """Folder that receives the configuration, metrics, schedule and timeline."""
    offload_dir: str = ""
    """Folder for activations that the schedule offloads; none keeps them in host memory."""
    host_memory: str = ""
    """The most host memory of a rank for offloaded activations, as in 8GiB; none is no limit."""
    verify_offload: bool = False
    """Compare a checksum of all that was offloaded when it comes back."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "ranks", "microbatches", "steps")
        require(self, "at least 0", "threads", "replan_after")
        require(self, "at least 0 and below 2**63", "seed")
        require(self, "above 0", "timeout_s")
        if self.host_memory:
            read_size(f"host_memory {self.host_memory!r}", self.host_memory)
        require_one_of("device", self.device, get_args(Device))
        require_one_of("precision", self.precision, get_args(Precision))
        _require_recompute(self.recompute)
        if self.replan_after >= self.steps and self.replan_after:
            raise UsageError(
                f"replan_after {self.replan_after} leaves none of {self.steps} steps to run"
            )


def _require_recompute(value: str) -> None:
    if value == "full":
        raise UsageError(
            "recompute full is for a schedule to say, by its ops R: make one with zerobubble "
            "search --recompute full --out s.json, and train with --schedule s.json"
        )
    require_one_of("recompute", value, get_args(Recompute))


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the transformer, or which model of Hugging Face to train."""

    source: Annotated[str, arg(name="model")] = ""
    """Checkpoint folder, hf:TYPE or hf:FILE.json; none is the transformer with the shape below."""
    source_config: str = ""
    """JSON file with the configuration of hf:TYPE; --config takes it too."""
    layers: int = 6
    """Number of transformer blocks, between the embedding and the head."""
    dim: int = 128
    """Channels of the residual stream."""
    heads: int = 4
    """Number of attention heads, each of dim / heads channels."""
    ffn_multiple: float = 2.5
    """Width of the feed-forward layer as a multiple of dim."""
    sequence: int = 128
    """Number of bytes in one training sequence."""
    vocabulary: int = VOCABULARY
    """Number of entries of the embedding and the head; text uses the first 256."""
    tied_head: bool = False
    """Let the head share the weights of the embedding."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "layers", "dim", "heads", "sequence")
        require(self, "above 0", "ffn_multiple")
        if self.vocabulary < VOCABULARY:
            raise UsageError(
                f"vocabulary {self.vocabulary} is too small for bytes: use {VOCABULARY} or more"
            )
        step = 2 * self.heads  # rotary embedding turns channels in pairs
        if self.dim % step:
            raise UsageError(
                f"dim {self.dim} does not give {self.heads} heads an even number of channels each: "
                f"use {nearest_multiples(self.dim, step)}"
            )

    @property
    def ffn_dim(self) -> int:
        """Channels of the feed-forward layer, at least 1."""
        return max(1, round(self.dim * self.ffn_multiple))


@dataclass(frozen=True)
class DataConfig:
    """Text to train on."""

    paths: tuple[str, ...] = ()
    """Files or folders of text; none means the sources of Python's standard library."""
    batch_size: int = 16
    """Number of sequences in a batch."""
    held_back_share: float = 0.05
    """Share of the text that is kept for evaluation."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "batch_size")
        require(self, "between 0 and 1", "held_back_share")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    lr: float = 3e-3
    """Learning rate after the warm-up."""
    min_lr_share: float = 0.1
    """Share of lr that is left at the last step."""
    warmup_steps: int = 30
    """Steps of linear warm-up."""
    beta1: float = 0.9
    """Decay of the running mean of the gradient."""
    beta2: float = 0.95
    """Decay of the running mean of the squared gradient."""
    weight_decay: float = 0.1
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Clip the global gradient norm to this; 0 leaves gradients as they are."""
    validate: Validate = "post"
    """Step before the norm over all ranks is known (post) or after (sync), with the same bits."""

    offload_optimizer: bool = False
    """Keep the optimizer's state in host memory; it comes to the device bucket by bucket."""

    def __post_init__(self) -> None:
        require_one_of("validate", self.validate, get_args(Validate))
        require(self, "above 0", "lr")
        require(self, "at least 0", "warmup_steps", "weight_decay", "max_grad_norm")
        require(self, "from 0 to 1", "min_lr_share")
        require(self, "at least 0 and below 1", "beta1", "beta2")


@dataclass(frozen=True)
class ReportConfig:
    """What is measured on the way."""

    eval_every: int = 50
    """Steps between two evaluations on the held-back text."""
    eval_batches: int = 8
    """Number of batches in one evaluation."""
    trace_steps: int | str = 3
    """Steps whose timeline is recorded: so many at the end, or a range such as 5-7, from 1."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "eval_every", "eval_batches")
        if self.chosen_steps is None:
            require(self, "at least 0", "trace_steps")

    @property
    def chosen_steps(self) -> range | None:
        """The numbers of the steps to record; None if they are the last ones."""
        return read_range("trace_steps", self.trace_steps)

    @property
    def num_last_steps(self) -> int:
        """How many steps at the end to record; 0 if others are chosen."""
        return self.trace_steps if isinstance(self.trace_steps, int) else 0


@dataclass(frozen=True)
class TrainConfig:
    """Train a transformer on text through a pipeline."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        size, count = self.data.batch_size, self.run.microbatches
        if size % count and not self.run.plan:  # which settles both
            raise UsageError(
                f"batch size {size} is not divisible by {count} microbatches: "
                f"use {nearest_multiples(size, count)}"
            )
        chosen, num_steps = self.report.chosen_steps, self.run.steps
        if chosen and chosen.stop > num_steps + 1:
            raise UsageError(
                f"trace_steps {self.report.trace_steps} goes beyond the {num_steps} steps of the "
                f"run: use numbers from 1 to {num_steps}"
            )
        if chosen and self.run.replan_after:
            raise UsageError(
                f"trace_steps {self.report.trace_steps} excludes replan_after, which measures the "
                "steps before it: give the number of last steps"
            )
