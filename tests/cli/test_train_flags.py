import dataclasses

import pytest

from zerobubble.cli.train import parse_train
from zerobubble.errors import UsageError
from zerobubble.train.config import TrainConfig
from zerobubble.train.config_file import SECTION_OF, to_toml


def changed(config=None, **changes):
    config = config or TrainConfig()
    for name, value in changes.items():
        section = getattr(config, SECTION_OF[name])
        section = dataclasses.replace(section, **{name: value})
        config = dataclasses.replace(config, **{SECTION_OF[name]: section})
    return config


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("", {}),
        ("-p 4 -m 2", {"ranks": 4, "microbatches": 2}),
        (
            "--ranks 4 --schedule 1f1b --dim 64 --heads 2",
            {"ranks": 4, "schedule": "1f1b", "dim": 64, "heads": 2},
        ),
        ("--precision=bf16 --tied-head", {"precision": "bf16", "tied_head": True}),
        ("--no-tied-head --lr 1e-3", {"lr": 1e-3}),
        ("--recompute light", {"recompute": "light"}),
        ("--offload-optimizer", {"offload_optimizer": True}),
        ("--timeout 5", {"timeout_s": 5.0}),
        ("--paths a b/c --batch-size 8", {"paths": ("a", "b/c"), "batch_size": 8}),
    ],
)
def test_flags_override_defaults(line, changes):
    assert parse_train(line.split()) == changed(**changes)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"cannot read .*run\.toml: it is not UTF-8 text"):
        parse_train(["--config", str(file)])


@pytest.mark.parametrize("form", ["--config {}", "--config={}"])
def test_flags_override_the_file_which_overrides_defaults(tmp_path, form):
    file = tmp_path / "run.toml"
    file.write_text("[run]\nsteps = 7\nseed = 3\n[data]\npaths = ['a']\n")
    arguments = ["--steps", "9", *form.format(file).split()]
    assert parse_train(arguments) == changed(steps=9, seed=3, paths=("a",))


def test_a_written_configuration_is_a_file_to_start_from(tmp_path):
    config = changed(ranks=3, tied_head=True, paths=("x y", 'quo"te'), lr=0.1)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert parse_train(["--config", str(file)]) == config


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--rank 3", "unrecognized option --rank: did you mean --ranks? SEE"),
        (
            "--batch_sizes=3",
            "unrecognized option --batch_sizes=3: did you mean --batch-size? SEE",
        ),
        ("--zzz 3", "unrecognized option --zzz SEE"),
        ("3", "unexpected argument '3' SEE"),
        (
            "--ranks x",
            "error parsing -p/--ranks: invalid literal for int() with base 10: 'x' SEE",
        ),
        ("--ranks", "missing value for argument '-p/--ranks'. Expected 1 values SEE"),
        ("--ranks 0", "ranks must be at least 1, not 0"),
        ("-m 3", "batch size 16 is not divisible by 3 microbatches: use 15 or 18"),
        ("--recompute all", "recompute must be one of off, light, not 'all'"),
        (
            "--recompute full",
            "recompute full is for a schedule to say, by its ops R: make one with zerobubble "
            "search --recompute full --out s.json, and train with --schedule s.json",
        ),
        ("--config no.toml", "cannot read no.toml: No such file or directory"),
        (
            "--precision fp16",
            "invalid choice 'fp16' for argument '--precision'. "
            "Expected one of ('fp32', 'bf16') SEE",
        ),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line_and_prints_nothing(line, message, capfd):
    with pytest.raises(UsageError) as refusal:
        parse_train(line.split())
    assert str(refusal.value) == message.replace("SEE", "(see zerobubble train --help)")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[run]\nrank = 2", "[run] has no key rank: did you mean ranks?"),
        (
            b"[run",
            "not valid TOML: Expected ']' at the end of a table declaration (at end of document)",
        ),
    ],
)
def test_a_wrong_file_is_named(content, message, tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        parse_train(["--config", str(file)])
    assert str(refusal.value) == f"{file}: {message}"


def test_help_describes_every_flag_and_exits_with_0(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse_train(["--help"])
    assert not exit_.value.code
    printed = capsys.readouterr().out
    missing = [name for name in SECTION_OF if f"--{name.replace('_', '-')}" not in printed]
    assert missing == []
    assert "Number of optimizer steps." in printed
