"""How is a schedule found that a user wrote as a function in a Python file?"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerobubble.errors import UsageError, ZeroBubbleError
from zerobubble.formats.reading import read_text
from zerobubble.schedules import REGISTRY, Recipe


def load_recipe(path: str, function: str) -> Recipe:
    """Execute a Python file and find the schedule that a function of it defines.

    The function is decorated with ``@schedule`` and found by its own or by the schedule's name.
    The registry stays as it was, so a variant may keep the name of the original.

    Raises:
        UsageError: the file cannot be read or executed, or has no such schedule.
    """
    before = dict(REGISTRY)
    try:
        with blame(path):
            _execute(path)
        found = [recipe for recipe in REGISTRY.values() if before.get(recipe.name) is not recipe]
    finally:
        REGISTRY.clear()
        REGISTRY.update(before)
    for recipe in found:
        if function in (recipe.name, recipe.order.__name__):
            return recipe
    has = ", ".join(recipe.order.__name__ for recipe in found)
    fix = f"it has {has}" if has else 'put @schedule("name", ...) above the function'
    raise UsageError(f"{path} has no schedule {function!r}: {fix}")


@contextmanager
def blame(path: str) -> Iterator[None]:
    """Turn what goes wrong in a user's file into a ``UsageError`` that names file and line."""
    try:
        yield
    except ZeroBubbleError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(path)]
        where = f"{path}, line {lines[-1]}" if lines else path
        raise UsageError(f"{where}: {type(error).__name__}: {error}") from error


def _execute(path: str) -> None:
    read_text(path)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        if known is None:
            del sys.modules[spec.name]
        else:
            sys.modules[spec.name] = known
