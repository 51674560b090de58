"""How do the tests call a command?"""

from typing import NamedTuple

import pytest

from zerobubble.cli import main


class Result(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


@pytest.fixture
def zerobubble(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder, within this process."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        status = main([str(word) for word in argv])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(zerobubble):
    """Run a command that must fail with one clear line, and return that line."""

    def run(*argv, status=2):
        result = zerobubble(*argv)
        assert (result.status, result.out) == (status, "")
        assert result.err.count("\n") == 1
        assert "Traceback" not in result.err
        return result.err.rstrip("\n")

    return run
