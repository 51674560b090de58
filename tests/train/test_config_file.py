import dataclasses
import tomllib
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobubble.errors import UsageError
from zerobubble.train.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from zerobubble.train.config_file import from_toml, to_toml

SAFE_VALUES = {
    int: st.integers(min_value=1, max_value=2**62),
    float: st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True),
    str: st.text(),
    bool: st.booleans(),
    tuple[str, ...]: st.lists(st.text()).map(tuple),
}


def values_of(kind):
    return st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else SAFE_VALUES[kind]


def sections(kind, **fixed):
    hints = get_type_hints(kind)
    drawn = {name: values_of(hint) for name, hint in hints.items() if name not in fixed}
    return st.builds(kind, **drawn, **fixed)


@st.composite
def configs(draw):
    heads, pairs, microbatches, size, steps = (draw(st.integers(1, 9)) for _ in range(5))
    replan_after = draw(st.integers(0, steps - 1))
    special = {
        "run": {
            "microbatches": st.just(microbatches),
            "steps": st.just(steps),
            "replan_after": st.just(replan_after),
            "host_memory": st.sampled_from(["", "1.5GiB"]),
            "recompute": st.sampled_from(["off", "light"]),
        },
        "model": {
            "dim": st.just(2 * heads * pairs),
            "heads": st.just(heads),
            "vocabulary": st.integers(256, 2**62),
            "source": st.just(""),  # the shape of another model is its own
        },
        "data": {"batch_size": st.just(microbatches * size)},
        "report": {"trace_steps": st.integers(0, 9) if replan_after else st.just("1-1")},
    }
    return TrainConfig(
        **{
            name: draw(sections(kind, **special.get(name, {})))
            for name, kind in get_type_hints(TrainConfig).items()
        }
    )


@given(configs())
def test_a_configuration_survives_being_written_and_read(config):
    assert from_toml(to_toml(config), "run.toml") == config


@given(configs())
def test_the_file_names_every_setting_and_holds_plain_toml(config):
    expected = dataclasses.asdict(config)
    expected["data"]["paths"] = list(config.data.paths)
    assert tomllib.loads(to_toml(config)) == expected


def test_what_a_file_leaves_out_keeps_its_default():
    read = from_toml('[run]\nranks = 3\n[data]\npaths = ["a", "b"]\n', "run.toml")
    assert read == TrainConfig(run=RunConfig(ranks=3), data=DataConfig(paths=("a", "b")))
    assert from_toml("", "run.toml") == TrainConfig()


def test_an_integer_is_a_number():
    read = from_toml("[model]\nffn_multiple = 3", "run.toml")
    assert read == TrainConfig(model=ModelConfig(ffn_multiple=3.0))
    assert type(read.model.ffn_multiple) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\ndims = 64", "[model] has no key dims: did you mean dim?"),
        ("[model]\nsteps = 64", "[model] has no key steps: it belongs below [run]"),
        (
            "[data]\nzzz = 64",
            "[data] has no key zzz: known are paths, batch_size, held_back_share",
        ),
        ("[modle]\ndim = 64", "unknown section [modle]: did you mean model?"),
        (
            "[zzz]",
            "unknown section [zzz]: known are run, model, data, optimizer, report",
        ),
        ("ranks = 2", "key ranks belongs below [run]"),
        ("model = 2", "model is a section: write [model] and its keys below"),
        ('[run]\nranks = "two"', '[run] ranks must be an integer, not "two"'),
        ("[run]\nranks = 2.0", "[run] ranks must be an integer, not 2.0"),
        ("[run]\nranks = true", "[run] ranks must be an integer, not true"),
        ("[run]\nschedule = 2", "[run] schedule must be a string, not 2"),
        ("[run]\nprecision = 16", "[run] precision must be a string, not 16"),
        ('[optimizer]\nlr = "big"', '[optimizer] lr must be a number, not "big"'),
        ("[model]\ntied_head = 1", "[model] tied_head must be true or false, not 1"),
        ('[data]\npaths = "a"', '[data] paths must be an array of strings, not "a"'),
        ("[data]\npaths = [1, 2]", "[data] paths must be an array of strings, not [1, 2]"),
        ("[run]\nranks = 0", "[run] ranks must be at least 1, not 0"),
        (
            '[run]\nprecision = "fp16"',
            "[run] precision must be one of fp32, bf16, not 'fp16'",
        ),
        (
            "[run]\nmicrobatches = 4\n[data]\nbatch_size = 10",
            "batch size 10 is not divisible by 4 microbatches: use 8 or 12",
        ),
        ("[run]\nranks = x\n", "not valid TOML: Invalid value (at line 2, column 9)"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, message):
    with pytest.raises(UsageError) as refusal:
        from_toml(text, "my/run.toml")
    assert str(refusal.value) == f"my/run.toml: {message}"
