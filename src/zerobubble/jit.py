"""How do hot loops run compiled when numba is there, and in plain Python otherwise?

A hot function is written over flat arrays and numbers only, so that the same text runs both ways
with the same result. Importing and compiling take longer than a small problem, so a caller says
how much work there is and small work stays in Python.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

SMALLEST_COMPILED_WORK = 500_000


class Hot:
    """A function over flat arrays and numbers that can be compiled; arrays are filled in place.

    The arrays that it fills are passed in; a read-only array is an input.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.python = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, work: int) -> Any:
        """Run it; ``work`` is about the number of steps of its innermost loop."""
        if work >= SMALLEST_COMPILED_WORK and find_spec("numba") is not None:
            return self.compiled(*arguments)
        return self._run_in_python(arguments)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The function compiled by numba; the machine code is kept on disk if there is a place."""
        import numba

        compiled: Callable[..., Any] = numba.njit(self.python)
        with suppress(RuntimeError):  # no folder for it can be written
            compiled = numba.njit(cache=True)(self.python)
        return compiled

    def _run_in_python(self, arguments: tuple[Any, ...]) -> Any:
        """Run it over lists, whose elements Python reaches several times faster."""
        lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in arguments]
        result = self.python(*lists)
        for argument, values in zip(arguments, lists, strict=True):
            if isinstance(argument, np.ndarray) and argument.flags.writeable:
                argument[:] = values
        return result


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
