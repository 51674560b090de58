"""Do the examples of the README print what stands there?"""

import doctest
import re
from pathlib import Path

import pytest

from zerobubble.cli import main

README = Path(__file__).parents[1] / "README.md"
_SAME_ANYWHERE = "show", "search", "frontier"  # others measure, or are the examples of docs/plan.md
COMMANDS = re.findall(
    rf"```\n\$ (?:\.venv/bin/)?zerobubble ((?:{'|'.join(_SAME_ANYWHERE)}) .*)\n((?:.*\n)*?)```",
    README.read_text(encoding="utf-8"),
)


def test_examples_print_what_stands_there():
    result = doctest.testfile(str(README), module_relative=False)
    assert (result.failed, result.attempted) == (0, 11)


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[each for each, _ in COMMANDS])
def test_what_stands_there_is_part_of_what_a_command_prints(command, printed, capsys):
    main(command.split())
    lines = iter(capsys.readouterr().out.splitlines())
    assert [line for line in printed.splitlines() if line not in lines] == []  # in this order


def test_all_these_commands_are_found():
    assert [command.split()[0] for command, _ in COMMANDS] == list(_SAME_ANYWHERE)
