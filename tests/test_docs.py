"""Do the examples of the docs print what stands there?"""

import doctest
import re
import shutil
from pathlib import Path

from zerobubble.cli import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
OFFLOAD = ROOT / "docs" / "offload.md"


def write_profile():
    """Write the profile of the page on planning."""
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(script, {})


def assert_commands_print_what_stands_there(page, number, capsys):
    blocks = re.findall(r"```\n\$ zerobubble (.*?)\n(.*?)\n```", page, re.DOTALL)
    assert len(blocks) == number
    for command, printed in blocks:
        main(command.split())
        output = capsys.readouterr()
        assert (output.out + output.err).rstrip() == printed


def test_the_example_of_planning_prints_what_stands_there(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    write_profile()
    assert_commands_print_what_stands_there(PAGE, 4, capsys)
    assert (tmp_path / "plan.json").exists()


def test_the_examples_of_offload_print_what_stands_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(OFFLOAD), module_relative=False)
    assert (failed, tried) == (0, 15)
    write_profile()
    capsys.readouterr()
    assert_commands_print_what_stands_there(OFFLOAD.read_text(encoding="utf-8"), 2, capsys)
