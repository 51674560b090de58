"""Which schedules are known by name? One file each: all modules of this folder are loaded."""

from importlib import import_module
from pkgutil import iter_modules

from zerobubble.schedules.registry import REGISTRY, Recipe, build, recipe, schedule

__all__ = ["REGISTRY", "Recipe", "build", "recipe", "schedule"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
