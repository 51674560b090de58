"""Does the command line find its commands, answer in one line, and leave torch alone?"""

import subprocess
import sys
from pathlib import Path

import pytest

from zerobubble import cli
from zerobubble.cli import main

COMMANDS = "compare export frontier list plan profile search show verify view".split()


def process(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "zerobubble", *argv], capture_output=True, text=True, **options
    )


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(zerobubble, argv):
    status, out, err = zerobubble(*argv)
    assert (status, err) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command} " in out
    assert "list      List the schedules that are known by name.\n" in out


def test_every_file_is_a_command_with_a_summary():
    for path in Path(cli.__file__).parent.glob("[!_]*.py"):
        assert "def run(argv: Sequence[str]) -> int:" in path.read_text()
        assert len(path.read_text().splitlines()[0].strip('"')) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert out.startswith(f"usage: zerobubble {command}")
    assert ("--json" in out) == (command != "export")  # which only writes files


def test_version(zerobubble):
    status, out, _ = zerobubble("--version")
    assert status == 0
    assert out.startswith("zerobubble ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["shwo"],
            "zerobubble shwo: unknown command: did you mean show? the commands are bench, ",
        ),
        (
            ["_arguments"],
            "zerobubble _arguments: unknown command: the commands are bench, compare, ",
        ),
        (
            ["--foo"],
            "zerobubble --foo: unknown command: the commands are bench, compare, ",
        ),
        (["show"], "zerobubble show: missing SCHEDULE (see zerobubble show --help)"),
        (["list", "x"], "zerobubble list: unexpected argument 'x' (see zerobubble list --help)"),
        (
            ["show", "1f1b", "--foo"],
            "zerobubble show: unrecognized option --foo (see zerobubble show --help)",
        ),
        (
            ["show", "1f1b", "-p"],
            "zerobubble show: missing value for argument '-p/--ranks'. Expected 1 values "
            "(see zerobubble show --help)",
        ),
        (
            ["compare", "-p", "two"],
            "zerobubble compare: error parsing -p/--ranks: write a whole number of 1 or more, "
            "not 'two' (see zerobubble compare --help)",
        ),
        (["verify", "1f1b", "-m", "0"], "zerobubble verify: error parsing -m/--microbatches: "),
        (["verify", "1f1b", "-m", "-1"], "zerobubble verify: error parsing -m/--microbatches: "),
        (["verify", "1f1b", "-m", "1.5"], "zerobubble verify: error parsing -m/--microbatches: "),
        (["verify", "1f1b", "-m", "²"], "zerobubble verify: error parsing -m/--microbatches: "),
    ],
)
def test_wrong_words_are_told_in_one_line(refused, argv, message):
    assert refused(*argv).startswith(message)


def test_a_process_ends_with_the_status():
    fine = process("show", "zb-h1", "-p", "4", "-m", "8", "--costs", "1,1,1,0", "--json")
    assert (fine.returncode, fine.stderr) == (0, "")
    wrong = process("show", "interleaved", "-p", "4", "-m", "6")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        "zerobubble show: interleaved needs a multiple of 4 microbatches, not 6\n"
    )
    usage = process("show", "zb-h3", "-p", "4", "-m", "8")
    assert (usage.returncode, usage.stdout, usage.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "argv",
    [
        ["list"],
        ["show", "zb-h1", "-p", "2", "-m", "2"],
        ["compare", "-p", "2", "-m", "2"],
        ["verify", "zb-h1", "-p", "2", "-m", "2"],
    ],
    ids=lambda argv: argv[0],
)
def test_commands_leave_slow_imports_alone(argv):
    code = (
        "import sys; from zerobubble.cli import main; status = main(sys.argv[1:])\n"
        "slow = {'torch', 'typeguard', 'asyncio', 'numpy.ma'} & {*sys.modules}\n"
        "sys.exit(str(slow) if slow else status)"
    )
    subprocess.run([sys.executable, "-c", code, *argv], check=True, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_no_error():
    """The reader ends at once, before 30,000 columns are written."""
    command = [sys.executable, "-m", "zerobubble", "show", "gpipe", "-p", "8", "-m", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "zerobubble", "list"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "zerobubble list: [Errno 28] No space left on device\n"


def test_an_interrupt_is_told_in_one_line_but_not_by_every_rank(zerobubble, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupt)
    monkeypatch.delenv("RANK", raising=False)
    assert zerobubble("search", "-p", 2) == (130, "", "zerobubble search: interrupted\n")
    monkeypatch.setenv("RANK", "0")
    assert zerobubble("train") == (130, "", "")


def test_a_command_that_needs_torch_says_how_to_get_it(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("zerobubble.runtime")]:
        monkeypatch.delitem(sys.modules, name)
    line = refused("train", "-p", 2)
    assert line == "zerobubble train: needs PyTorch: pip install 'zerobubble[torch]'"


@pytest.mark.parametrize("numbers", [(99_999, 99_999), (10**12, 1)])
def test_numbers_beyond_any_memory_are_refused_at_once(refused, numbers):
    line = refused("show", "zb-h1", "-p", numbers[0], "-m", numbers[1])
    assert "ops a kind are too many" in line
