"""Which configuration do the flags of ``zerobubble train`` ask for?

tyro derives one flag per setting; a TOML file given by ``--config`` takes the place of the
defaults. What tyro reports in a box of several lines becomes one line here.
"""

import argparse
import contextlib
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from zerobubble.errors import UsageError
from zerobubble.train.config import TrainConfig
from zerobubble.train.config_file import SECTION_OF, from_toml


@dataclass(frozen=True)
class _CommandLine:
    """Train a transformer on text through a pipeline."""

    config: str = ""
    """TOML file whose values take the place of the defaults below."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def parse_train_args(argv: Sequence[str]) -> TrainConfig:
    """Return the configuration for the arguments of ``zerobubble train``.

    Flags override the file of ``--config``, which overrides the defaults. ``--help`` prints all
    flags and exits with status 0.

    Raises:
        UsageError: in one line, which flag, value or key of the file is wrong.

    >>> parse_train_args(["-p", "4", "--dim", "64", "--heads", "4"]).run.ranks
    4
    """
    path = _config_path(argv)
    defaults = _CommandLine(path, _read(path) if path else TrainConfig())
    parsed, unknown = _parse(argv, defaults)
    if unknown:
        raise UsageError(_describe_unknown(unknown[0]))
    return parsed.train


def _config_path(argv: Sequence[str]) -> str:
    """Find the file first: its values are the defaults that the flags are parsed with."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="?", default="")
    found: str | None = finder.parse_known_args(argv)[0].config
    return found or ""


def _read(path: str) -> TrainConfig:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not valid TOML: the file is not UTF-8 text") from None
    return from_toml(text, path)


def _parse(argv: Sequence[str], defaults: _CommandLine) -> tuple[_CommandLine, list[str]]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                _CommandLine,
                prog="zerobubble train",
                args=argv,
                default=defaults,
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise _refusal(exit_) or UsageError(_first_sentence(printed.getvalue())) from None


def _refusal(error: BaseException | None) -> UsageError | None:
    """Find the error of a section that tyro caught and turned into an exit."""
    while error is not None and not isinstance(error, UsageError):
        error = error.__context__
    return error


def _first_sentence(box: str) -> str:
    """Join the wrapped lines of tyro's box, between its title and its first rule.

    >>> _first_sentence("╭─ Error ─╮\\n│ Bad     │\\n│ value.  │\\n│ ─────── │\\n│ Help is │")
    'bad value'
    """
    lines = [line.strip("│ ") for line in box.splitlines()[1:]]
    end = next((i for i, line in enumerate(lines) if line.startswith("─")), len(lines))
    sentence = " ".join(lines[:end]).rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def _describe_unknown(argument: str) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}: settings are given as --name value"
    name = argument.partition("=")[0].replace("_", "-")
    flags = ["--config", *(f"--{setting.replace('_', '-')}" for setting in SECTION_OF)]
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f"did you mean {near[0]}?" if near else "zerobubble train --help lists all"
    return f"unrecognized option {argument}: {hint}"
