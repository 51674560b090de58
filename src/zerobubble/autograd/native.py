"""When is the node of a deferred product the one in C++, and how does it get built?

``native.cpp`` has the same node as ``function.py`` for linear, matmul, mm and addmm. It is never
built on import: :func:`build_native` builds it once, into a cache, and from then on every process
with the same torch, Python and source finds it there. Without it everything runs in Python.
"""

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zerobubble.autograd.queue import WeightGradient, WeightQueue

_NAME = "zerobubble_native"
_SOURCE = Path(__file__).with_name("native.cpp")
_LINEAR, _MATMUL, _MM, _ADDMM = range(4)
_KINDS: dict[Any, int] = {
    F.linear: _LINEAR,
    torch.matmul: _MATMUL,
    Tensor.matmul: _MATMUL,
    Tensor.__matmul__: _MATMUL,
    torch.mm: _MM,
    Tensor.mm: _MM,
    torch.addmm: _ADDMM,
    Tensor.addmm: _ADDMM,
}


class _State:
    """The loaded extension, and what it is given before its first use."""

    module: Any = None
    set_up: tuple[Any, ...] = ()


def directory() -> Path:
    """Return the folder of the build for this torch, Python and source.

    It is below ``$ZEROBUBBLE_NATIVE``, or else the user's cache folder.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zerobubble"
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    key = f"{sys.implementation.cache_tag}-torch-{torch.__version__}-{source}"
    return Path(os.environ.get("ZEROBUBBLE_NATIVE", default)) / key


def build_native(*, verbose: bool = False) -> Path:
    """Build the C++ node unless it is built, use it from now on, and return its folder.

    Takes about half a minute and needs a C++ compiler and ninja.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    if not load():
        from torch.utils.cpp_extension import load as build

        folder = directory()
        folder.mkdir(parents=True, exist_ok=True)
        sources, flags = [str(_SOURCE)], ["-O2"]
        try:
            build(_NAME, sources, flags, build_directory=str(folder), verbose=verbose)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"the C++ node needs a compiler and ninja: {error}") from error
        if not load():
            raise RuntimeError(f"the C++ node was built in {folder}, but cannot be loaded")
    return directory()


def load() -> bool:
    """Use the C++ node if there is a build that works; say whether it is in use."""
    if _State.module is None:
        _State.module = _import(directory() / f"{_NAME}.so")
        if _State.module is not None:
            _State.module.set_up(*_State.set_up)
    return _State.module is not None


def unload() -> None:
    """Use the Python node from now on."""
    _State.module = None


@contextmanager
def in_python() -> Iterator[None]:
    """Use the Python node within the block: only it can be looked into."""
    module, _State.module = _State.module, None
    try:
        yield
    finally:
        _State.module = module


def connect(anchor: Tensor, refuse_double_backward: Callable[[WeightGradient], None]) -> None:
    """Give what ``function.py`` shares with the C++ node, and load it if it is built."""
    _State.set_up = (anchor, refuse_double_backward)
    load()


def defer(
    op: Callable[..., Any],
    x: Tensor,
    operands: tuple[Any, ...],
    split: WeightGradient,
    queue: WeightQueue,
) -> Tensor | None:
    """Do what ``function.defer`` does, or return None where that is left to Python."""
    if _State.module is None:
        return None
    weight, bias, *_ = (*operands, None)
    function: Any = op
    if type(op) is functools.partial:
        function, bias = op.func, op.args[0]
    kind = _KINDS.get(function)
    if kind is None or torch._C._len_torch_function_stack():
        return None
    y: Tensor = _State.module.defer(kind, x, weight, bias, split, queue.push)
    return y


def _import(path: Path) -> Any:
    """Import an extension, or return None: a broken build must not stop a run."""
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(_NAME, path)
    try:
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except (ImportError, OSError):
        return None
    return module
