"""Measure what every layer of a model costs, or estimate it for a device that is not here."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Union

import tyro
from tyro.conf import arg

from zerobubble.cli._arguments import Json, Ranks
from zerobubble.cli._counts import read_counts
from zerobubble.cli._parse import parse
from zerobubble.cli._report import print_json
from zerobubble.cli._writing import PROFILE, Target, require_places
from zerobubble.errors import UsageError
from zerobubble.profile import Profile
from zerobubble.profile.file import dumps, loads, save
from zerobubble.train.config import Device, ModelConfig, Precision, Validate
from zerobubble.view.profile import doubts, draw_profile

if TYPE_CHECKING:
    from zerobubble.runtime.layered import LayeredModel


@dataclass(frozen=True)
class ProfileCommand:
    """Measure what every layer of a model costs, or estimate it for a device that is not here.

    All ranks measure at the same time, since they share what one machine has. Layers of the same
    kind are measured once. `zerobubble plan --profile` plans with what --out has written.
    """

    ranks: Ranks = None
    microbatch_size: Annotated[str, arg(metavar="N,N,...", help="in samples")] = "1"
    device: Annotated[Device, arg(help="on which to measure")] = "cpu"
    device_spec: Annotated[
        str, arg(metavar="h100|a100|FILE", help="estimate for this device, measure nothing")
    ] = ""
    precision: Annotated[
        Precision, arg(help="of matrix products; an estimate in bf16 has parameters of it too")
    ] = "fp32"
    validate: Annotated[Validate, arg(help="how the optimizer steps")] = "post"
    threads: Annotated[int, arg(help="CPU threads of each rank; 0 shares the cores")] = 0
    seconds: Annotated[float, arg(help="how long each kind of layer is measured")] = 2.0
    out: Annotated[
        Union[None, str],  # noqa: UP007, RUF036 (as in _arguments)
        arg(metavar="FILE", help="write the profile as JSON"),
    ] = None
    json: Json = False
    config: Annotated[
        str, arg(metavar="FILE", help="JSON file with the configuration of --model hf:TYPE")
    ] = ""
    settings: Annotated[ModelConfig, arg(name="")] = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise UsageError(f"--threads {self.threads}: write a number of 0 or more")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"--seconds {self.seconds}: write a number above 0")
        if self.device_spec and (self.ranks or self.device != "cpu" or self.threads):
            raise UsageError("--device-spec measures nothing: leave out -p, --device and --threads")
        if self.config and self.settings.source_config not in ("", self.config):
            raise UsageError("--config and --source-config name two files: leave one out")

    @property
    def sizes(self) -> list[int]:
        """The microbatch sizes."""
        return read_counts("--microbatch-size", self.microbatch_size)

    @property
    def config_path(self) -> str:
        """File with the configuration of the model, if there is one."""
        return self.config or self.settings.source_config


def run(argv: Sequence[str]) -> int:
    """Estimate in this process, or measure in one process for each rank."""
    asked = parse(ProfileCommand, argv, command="profile", config=(tyro.conf.OmitArgPrefixes,))
    sizes = asked.sizes
    require_places(Target("--out", asked.out, PROFILE))
    if asked.device_spec:
        found = _estimate(asked, sizes)
    else:
        found = _measure(asked)
        for warning in doubts(found):
            print(f"warning: {warning}", file=sys.stderr)
    if asked.out is not None:
        save(found, asked.out)
    if asked.json:
        print_json(json.loads(dumps(found)))
    else:
        print(draw_profile(found))
    return 0


def _find_model(asked: ProfileCommand) -> "LayeredModel":
    from zerobubble.train.model_source import find_model

    return find_model(asked.settings.source, asked.config_path, asked.settings)


def _estimate(asked: ProfileCommand, sizes: Sequence[int]) -> Profile:
    import torch

    from zerobubble.profiling import estimate, find_device_spec

    dtype = torch.bfloat16 if asked.precision == "bf16" else torch.float32
    spec = find_device_spec(asked.device_spec)
    return estimate(_find_model(asked), spec, sizes, dtype=dtype, validate=asked.validate)


def _measure(asked: ProfileCommand) -> Profile:
    from zerobubble.runtime.device import find_device
    from zerobubble.train.launch import launch
    from zerobubble.train.loop import threads_per_rank

    find_device(asked.device)
    _find_model(asked)
    ranks = asked.ranks or 1
    work = _Work(asked, threads_per_rank(asked.threads, ranks))
    text = work.here() if ranks == 1 else launch([work.in_a_process], ranks, work.threads)[0]
    return loads(text, "the profile")


@dataclass(frozen=True)
class _Work:
    """What every rank does; profiles travel between processes as text."""

    asked: ProfileCommand
    threads: int

    def here(self) -> str:
        """Measure on this rank."""
        import os

        import torch

        from zerobubble.profiling import measure
        from zerobubble.runtime.device import keep_freed_memory

        keep_freed_memory()  # as the trainer does
        torch.set_num_threads(self.threads)
        is_cpu = self.asked.device == "cpu"
        profile = measure(
            _find_model(self.asked),
            num_ranks=self.asked.ranks or 1,
            microbatch_sizes=self.asked.sizes,
            device="cpu" if is_cpu else f"cuda:{os.environ.get('LOCAL_RANK', '0')}",
            autocast=torch.bfloat16 if self.asked.precision == "bf16" else None,
            validate=self.asked.validate,
            seconds=self.asked.seconds,
        )
        return dumps(profile)

    def in_a_process(self) -> str:
        """Measure in a process of a launch."""
        from zerobubble.train.launch import end_with_launcher

        end_with_launcher()
        return self.here()
