"""Train the reference transformer on text through a pipeline."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Annotated

import tyro

from zerobubble.cli._arguments import UNIT_COSTS
from zerobubble.cli._parse import parse
from zerobubble.cli._resolve import resolve
from zerobubble.formats.reading import read_text
from zerobubble.ir import Schedule
from zerobubble.plan.data import Plan
from zerobubble.plan.file import load as load_plan
from zerobubble.train.config import ModelConfig, TrainConfig
from zerobubble.train.config_file import from_toml, to_toml
from zerobubble.train.planned import follow
from zerobubble.verify import verify


@dataclass(frozen=True)
class Train:
    """Train the reference transformer, or a model of Hugging Face, on text through a pipeline."""

    config: str = ""
    """TOML file whose values take the place of the defaults below, or the JSON file of --model."""
    settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def parse_train(argv: Sequence[str]) -> TrainConfig:
    """Resolve the configuration: flags override the file of ``--config``, which overrides defaults.

    Raises:
        UsageError: a flag, a value or a key of the file is wrong.

    >>> parse_train(["-p", "4", "--dim", "64", "--heads", "4"]).run.ranks
    4
    """
    # The file comes first, because its values are the defaults with which flags are parsed.
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="?", default="")
    path = finder.parse_known_args(argv)[0].config
    if (path or "").endswith(".json"):
        settings = TrainConfig(model=ModelConfig(source_config=path))
    else:
        settings = from_toml(read_text(path), path) if path else TrainConfig()
    default = Train(path or "", settings)
    options = {"default": default, "config": (tyro.conf.OmitArgPrefixes,)}
    return parse(Train, argv, command="train", **options).settings


def run(argv: Sequence[str]) -> int:
    """Start one process for each rank or, inside such a process (``RANK`` is set), train."""
    config, schedule = _what_runs(parse_train(argv))
    if "RANK" in os.environ:
        _work(config, schedule)
    elif config.run.ranks == 1:
        from zerobubble.train.loop import train

        train(config, schedule)
    else:
        _launch(config, schedule)
    return 0


def _what_runs(config: TrainConfig) -> tuple[TrainConfig, Schedule | Plan]:
    """Find the plan or the schedule of a run, and the configuration that follows it."""
    run_config = config.run
    if run_config.plan:
        plan = load_plan(run_config.plan)
        return follow(config, plan), plan
    schedule, _ = resolve(
        run_config.schedule, run_config.ranks, run_config.microbatches, UNIT_COSTS
    )
    verify(schedule)
    return config, schedule


def _work(config: TrainConfig, schedule: Schedule | Plan) -> None:
    from zerobubble.train.launch import end_with_launcher, report_failure
    from zerobubble.train.loop import train

    end_with_launcher()
    try:
        train(config, schedule)
    except Exception as error:
        report_failure(error)
        raise


def _launch(config: TrainConfig, schedule: Schedule | Plan) -> None:
    """Start the ranks after looking for what would make every one of them fail alike.

    They get the resolved configuration, so that all of them run the same even if a file changes.
    """
    from zerobubble.runtime.device import find_device
    from zerobubble.runtime.given import unpack
    from zerobubble.runtime.offload.file import remove_left_behind
    from zerobubble.train.data import load_data
    from zerobubble.train.launch import launch
    from zerobubble.train.loop import offload_of, threads_per_rank
    from zerobubble.train.model_source import find_encoding, find_model

    model = find_model(config.model.source, config.model.source_config, config.model)
    unpack(model, schedule)
    find_device(config.run.device)
    offload_of(config).try_directory()
    load_data(config, find_encoding(model))
    threads = threads_per_rank(config.run.threads, config.run.ranks)
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".toml") as resolved:
        resolved.write(to_toml(config))
        resolved.flush()
        command = [sys.executable, "-m", "zerobubble", "train", "--config", resolved.name]
        try:
            launch(command, config.run.ranks, threads)
        finally:
            if config.run.offload_dir:
                remove_left_behind(config.run.offload_dir)
