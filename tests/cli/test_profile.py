"""The command profile."""

import json

import pytest

from zerobubble.profile import load

SMALL = ("--layers", 2, "--dim", 16, "--heads", 2, "--sequence", 8)


def test_an_estimate_has_a_line_for_each_distinct_layer(zerobubble):
    found = zerobubble("profile", *SMALL, "--device-spec", "a100", "--microbatch-size", "1,4")
    lines = found.out.splitlines()
    assert found.status == 0
    assert lines[0] == "reference on a100 (estimated, float32), microbatches of 1"
    assert lines[1].split()[:6] == ["layer", "alike", "F", "ms", "B", "ms"]
    assert [line.split()[:2] for line in (lines[2], lines[4])] == [
        ["embedding", "1"],
        ["head", "1"],
    ]
    assert lines[3].startswith("block 0        2  ")
    assert lines[5] == "reference on a100 (estimated, float32), microbatches of 4"
    links = "links: latency 10 us, 240 GB/s; host: latency 10 us, 25.2 GB/s; besides"
    assert lines[-1].startswith(links)


def test_json_is_what_out_writes(zerobubble):
    flags = ("--device-spec", "h100", "--precision", "bf16", "--out", "it.json", "--json")
    found = zerobubble("profile", *SMALL, *flags)
    with open("it.json") as file:
        assert json.loads(found.out) == json.load(file)
    profile = load("it.json")
    assert profile.device == "h100 (estimated, bfloat16)"
    assert profile.num_layers == 4
    assert profile.at(1)[1] == profile.at(1)[2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_measure(zerobubble, monkeypatch, ranks):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    flags = ("--seconds", 0.02, "--threads", 1, "-p", ranks, "--out", "it.json")
    found = zerobubble("profile", *SMALL, *flags)
    assert found.status == 0
    assert found.out.startswith("reference on cpu, microbatches of 1\n")
    profile = load("it.json")
    assert all(layer.forward_ms > 0 for layer in profile.at(1))
    assert (profile.link.transfer_ms(2**20) > 0) == (ranks > 1)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--microbatch-size", "1,x"], "--microbatch-size '1,x': write numbers of 1 or more, as"),
        (["--microbatch-size", "9" * 5000], "write numbers of 1 or more, as in 1,2,4, of up to 15"),
        (["--config", "a.json", "--source-config", "b.json"], "name two files: leave one out"),
        (["--microbatch-size", "0"], "--microbatch-size '0': write numbers of 1 or more"),
        (["--device-spec", "h1"], "unknown device 'h1': use h100, a100 or a JSON file"),
        (["--device-spec", "h100", "-p", "2"], "--device-spec measures nothing: leave out -p"),
        (["--threads", "-1"], "--threads -1: write a number of 0 or more"),
        (["--seconds", "0"], "--seconds 0.0: write a number above 0"),
        (["--dim", "3"], "dim 3 does not give 4 heads an even number of channels each"),
        (["--out", "no/where.json"], "cannot write no/where.json"),
        (["--layer", "3"], "--layer"),
    ],
)
def test_bad_input_is_one_line(refused, flags, part):
    assert part in refused("profile", *flags)


def test_huge_sizes_are_told_without_the_stack_of_torch(refused):
    message = refused("profile", "--ffn-multiple", "1e300", "--device-spec", "h100")
    assert "layer 1 (block 0) cannot be profiled: " in message
    assert "Exception raised from" not in message


SHAPE = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("flag", ["--config", "--source-config"])
def test_profile_and_plan_take_the_configuration_of_a_model_type(zerobubble, tmp_path, flag):
    (tmp_path / "small.json").write_text(json.dumps(SHAPE))
    named = ("--model", "hf:qwen2", "--sequence", 8, "--device-spec", "h100")
    found = zerobubble("profile", *named, flag, "small.json", "--out", "it.json")
    assert (found.status, load("it.json").layer_names[1:3]) == (0, ("block 0", "block 1"))
    if flag == "--config":
        batch = ("-p", 2, "--batch-size", 4, "--microbatch-size", 1)
        planned = zerobubble("plan", *named, flag, "small.json", *batch)
        assert planned.out.startswith("qwen2: 2 ranks, 4 microbatches of 1")
