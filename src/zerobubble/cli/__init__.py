"""What does ``zerobubble COMMAND`` run? One file of this folder for each command.

A file whose name has no leading underscore is a command: the first line of its docstring is its
summary, and its function ``run`` takes the arguments and returns the exit status. Only the chosen
command is imported, so that each answers as fast as what it needs.
"""

import ast
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from zerobubble.errors import UsageError, ZeroBubbleError

USAGE = "usage: zerobubble [--help] [--version] COMMAND ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 is fine, 1 says that a schedule or run is wrong, 2 the usage, and 130 an interrupt.
    """
    arguments = sys.argv[1:] if argv is None else argv
    command = " ".join(["zerobubble", *arguments[:1]])
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except ZeroBubbleError as error:
        print(f"{command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(f"{command}: needs PyTorch: pip install 'zerobubble[torch]'", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        print(f"{command}: {error}", file=sys.stderr)
        _drop_output()
        return 1
    except KeyboardInterrupt:
        if "RANK" not in os.environ:  # for all ranks their launcher says it once
            print(f"{command}: interrupted", file=sys.stderr)
        return 130
    return status


def _run(arguments: Sequence[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"zerobubble {_version()}")
        return 0
    if name not in _commands():
        close = get_close_matches(name, _commands(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"unknown command: {hint}the commands are {', '.join(_commands())}")
    status: int = import_module(f"{__name__}.{name}").run(rest)
    return status


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _commands() -> dict[str, Path]:
    paths = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {path.stem: path for path in paths}


def _help() -> str:
    lines = [USAGE, "", "commands:"]
    for name, path in _commands().items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:10}{docstring.partition(chr(10))[0]}")
    return "\n".join([*lines, "", "zerobubble COMMAND --help lists the options of a command."])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("zerobubble")
    except PackageNotFoundError:
        return "(not installed)"
