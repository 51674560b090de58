"""Do the examples of the docs print what stands there?"""

import doctest
import re
import shutil
from pathlib import Path

from zerobubble.cli import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


def test_the_example_of_planning_prints_what_stands_there(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(script, {})
    blocks = re.findall(r"```\n\$ zerobubble (.*?)\n(.*?)\n```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for command, printed in blocks:
        main(command.split())
        output = capsys.readouterr()
        assert (output.out + output.err).rstrip() == printed
    assert (tmp_path / "plan.json").exists()


def test_the_example_of_offload_prints_what_stands_there():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "offload.md"), module_relative=False)
    assert (failed, tried) == (0, 5)
