"""How do hot loops run compiled when numba is there, and in plain Python otherwise?

A hot function is written over flat arrays and numbers only, so that the same text runs both ways
with the same result. Importing and compiling take longer than a small problem, so a caller says
how much work there is, and a function stays in Python until it has been given much of it.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numpy as np

SMALLEST_COMPILED_WORK = 500_000


class Hot:
    """A function over flat arrays, numbers and named tuples of these that can be compiled.

    It makes no arrays or lists: those that it fills are passed in; a read-only array is an input.
    Hot functions may call each other.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.python = function
        self._work_so_far = 0
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, work: int = 0, adds_up: bool = False) -> Any:
        """Run it.

        Args:
            arguments: of the function.
            work: about the number of steps of its innermost loop, in this call or, where a caller
                knows that more will follow, in all of them.
            adds_up: whether the work of such calls counts together.
        """
        if adds_up:
            work = self._work_so_far = self._work_so_far + work
        if work >= SMALLEST_COMPILED_WORK and _can_compile():
            return self.compiled(*arguments)
        return self._run_in_python(arguments)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The function compiled by numba; the machine code is kept on disk if there is a place."""
        import numba
        from numba.core.options import DefaultOptions

        # Nothing is allocated, so no references need be counted: that takes most of the time where
        # hot functions call each other.
        options = {"nogil": True}
        if hasattr(DefaultOptions, "_nrt"):
            options["_nrt"] = False
        plain = self._calling("compiled")
        compiled: Callable[..., Any] = numba.njit(**options)(plain)
        with suppress(RuntimeError):  # no folder for it can be written
            compiled = numba.njit(cache=True, **options)(plain)
        return compiled

    @cached_property
    def interpreted(self) -> Callable[..., Any]:
        """The function in Python; the hot functions that it calls get its lists as they are."""
        return self._calling("interpreted")

    def _calling(self, way: str) -> FunctionType:
        """Bind the names of hot functions to one way of running them."""
        names = self.python.__globals__
        called = {
            name: getattr(names[name], way)
            for name in self.python.__code__.co_names
            if isinstance(names.get(name), Hot)
        }
        bound = FunctionType(self.python.__code__, names | called, self.python.__name__)
        bound.__module__, bound.__qualname__ = self.python.__module__, self.python.__qualname__
        return bound

    def _run_in_python(self, arguments: tuple[Any, ...]) -> Any:
        """Run it over lists, whose elements Python reaches several times faster."""
        lists = [_as_lists(argument) for argument in arguments]
        result = self.interpreted(*lists)
        for argument, values in zip(arguments, lists, strict=True):
            _copy_back(argument, values)
        return result


@cache
def _can_compile() -> bool:
    return find_spec("numba") is not None


def _as_lists(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.tolist()
    if isinstance(argument, tuple):
        return type(argument)(*map(_as_lists, argument))
    return argument


def _copy_back(argument: Any, values: Any) -> None:
    if isinstance(argument, np.ndarray) and argument.flags.writeable:
        argument[:] = values
    elif isinstance(argument, tuple):
        for array, changed in zip(argument, values, strict=True):
            _copy_back(array, changed)


def hot(function: Callable[..., Any]) -> Hot:
    """Mark a hot function.

    >>> @hot
    ... def fill(values, start):
    ...     for i in range(len(values)):
    ...         values[i] = start + i
    >>> table = np.zeros(3)
    >>> fill(table, 2, work=3)
    >>> table.tolist()
    [2.0, 3.0, 4.0]
    """
    return Hot(function)
