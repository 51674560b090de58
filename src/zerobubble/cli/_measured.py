"""Which measured run does an argument mean, if any, and which step of it?"""

from pathlib import Path

from zerobubble.errors import UsageError
from zerobubble.formats.reading import read_text
from zerobubble.formats.timeline import FORMAT, load, loads
from zerobubble.measured import MeasuredRun, MeasuredStep
from zerobubble.schedules import REGISTRY


def find_run(path: str) -> MeasuredRun | None:
    """Read a run folder or its ``timeline.json``; None if the argument means neither.

    Raises:
        UsageError: the run is there, but cannot be read.
    """
    if path in REGISTRY or not _exists(path):
        return None
    if Path(path).is_dir():
        return load(Path(path) / "timeline.json")
    if not path.endswith(".json"):
        return None
    text = read_text(path)
    return loads(text, path) if f'"{FORMAT}"' in text else None


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # it is too long, or has a null character
        return False


def choose_step(run: MeasuredRun, path: str, number: int | None) -> MeasuredStep:
    """Find a step by its number, by default the last one that was recorded.

    Raises:
        UsageError: it was not recorded, or none was.
    """
    if not run.steps:
        raise UsageError(f"{path} has no recorded step: run again with --trace-steps 1 or more")
    numbers = [step.number for step in run.steps]
    if number is None:
        return run.steps[-1]
    if number not in numbers:
        recorded = ", ".join(map(str, numbers[:9])) + (", ..." if len(numbers) > 9 else "")
        raise UsageError(f"{path} has no step {number}: recorded are {recorded}")
    return run.steps[numbers.index(number)]
