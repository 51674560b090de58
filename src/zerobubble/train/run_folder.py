"""What does a run leave behind? A folder with its configuration, metrics, schedule and timeline."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from zerobubble.errors import UsageError
from zerobubble.formats.json import dumps
from zerobubble.formats.timeline import save
from zerobubble.ir import Schedule
from zerobubble.measured import MeasuredRun
from zerobubble.train.config import TrainConfig
from zerobubble.train.config_file import to_toml


class RunFolder:
    """A new folder for one run; an earlier run's folder is never written to.

    ``config.toml`` and ``schedule.json`` are written first, ``metrics.jsonl`` gets one line for
    each step as it ends, ``timeline.json`` the measured timelines of the last steps.

    Args:
        path: of the folder; if it is in use, ``-2``, ``-3``, ... is added.
        config: the resolved configuration of the run.
        schedule: what the ranks run.

    Raises:
        UsageError: the folder cannot be made.
    """

    def __init__(self, path: str, config: TrainConfig, schedule: Schedule) -> None:
        self.path = _make(Path(path))
        (self.path / "config.toml").write_text(to_toml(config), encoding="utf-8")
        (self.path / "schedule.json").write_text(dumps(schedule), encoding="utf-8")
        self._metrics = (self.path / "metrics.jsonl").open("w", encoding="utf-8", buffering=1)

    def add_metrics(self, values: Mapping[str, float | int]) -> None:
        """Append one line to ``metrics.jsonl``; null stands for inf and nan."""
        finite = {key: x if math.isfinite(x) else None for key, x in values.items()}
        self._metrics.write(json.dumps(finite) + "\n")

    def write_measured(self, run: MeasuredRun) -> None:
        """Write ``timeline.json``."""
        save(run, self.path / "timeline.json")

    def close(self) -> None:
        """Close the files that are still open."""
        self._metrics.close()


def _make(wanted: Path) -> Path:
    if not wanted.name:
        raise UsageError(f"--out {str(wanted)!r} names no new folder: write one, like runs/mine")
    number, path = 1, wanted
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")
        except OSError as error:
            raise UsageError(f"cannot make the folder {path}: {error.strerror}") from None
        else:
            return path
