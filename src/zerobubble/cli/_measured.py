"""Which measured run does an argument mean, if any, and which step of it?"""

from pathlib import Path

from zerobubble.errors import UsageError
from zerobubble.formats.reading import read_text
from zerobubble.formats.timeline import FORMAT, load, loads
from zerobubble.measured import MeasuredRun, MeasuredStep
from zerobubble.schedules import REGISTRY

_NAME = "timeline.json"


def find_run(path: str) -> MeasuredRun | None:
    """Read a run folder or its ``timeline.json``; None if the argument means neither.

    Raises:
        UsageError: the run is there, but cannot be read.
    """
    if path in REGISTRY or not _exists(path):
        return None
    if Path(path).is_dir():
        _require_run_folder(path)
        return load(Path(path) / _NAME)
    if not path.endswith(".json"):
        return None
    text = read_text(path)
    return loads(text, path) if _is_timeline(text) else None


def refuse_run(path: str) -> None:
    """Refuse a run where a schedule is needed, and say what takes runs.

    Raises:
        UsageError: the argument means a run folder, or its ``timeline.json``.
    """
    if path in REGISTRY or not _exists(path):
        return
    place = Path(path)
    is_file = place.is_file() and path.endswith(".json") and _is_timeline(read_text(path))
    if is_file or (place / _NAME).is_file():
        folder = place.parent if is_file else place
        raise UsageError(
            f"{path} is a measured run: show it with zerobubble view {path}, write it with "
            f"zerobubble export {path}, or take its schedule, {folder / 'schedule.json'}"
        )


def _require_run_folder(path: str) -> None:
    if (Path(path) / _NAME).exists():
        return
    runs = sorted(place.parent.name for place in Path(path).glob(f"*/{_NAME}"))
    found = "; runs in it: " + ", ".join(runs[:9]) + (", ..." if len(runs) > 9 else "")
    raise UsageError(f"{path} is no run folder: it has no {_NAME}{found if runs else ''}")


def _is_timeline(text: str) -> bool:
    """Say whether JSON text means a measured run, also where it lacks its format."""
    return f'"{FORMAT}"' in text or ('"steps":' in text and '"schedule":' in text)


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
