"""Does a run train the model that is asked for, on the tokens that it knows?"""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from zerobubble.cli import main
from zerobubble.errors import UsageError
from zerobubble.train.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from zerobubble.train.data import load_data
from zerobubble.train.model_source import find_encoding, find_model

SMALL = {
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SHAPE = ModelConfig(sequence=8)
WORDS = {"<unknown>": 0, "pack": 1, "my": 2, "box": 3}


@pytest.fixture
def values(tmp_path):
    """Write the configuration of a small model without its type."""
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.fixture
def folder(tmp_path):
    """Save a model with a tokenizer that knows three words."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).save_pretrained(tmp_path / "saved")
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "saved" / "tokenizer.json"))
    return tmp_path / "saved"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("pack my box " * 100)
    return path


def test_without_a_source_it_is_the_reference_transformer():
    model = find_model("", "", ModelConfig(layers=2, sequence=8))
    assert (model.name, len(model.layers), find_encoding(model)) == ("reference", 4, None)
    x, y = model.sample_batch(3)
    assert x.shape == y.shape == (3, 8)
    for build in model.layers:
        x = build()(x)
    assert model.loss_fn(x, y).shape == ()


def test_a_type_a_file_and_a_folder_name_models_of_hugging_face(values, folder):
    typed = find_model("hf:qwen2", str(values), SHAPE)
    assert (typed.name, typed.vocabulary, len(typed.layers)) == ("qwen2", 256, 4)
    values.write_text(json.dumps(SMALL | {"model_type": "mistral"}))
    for spec in (f"hf:{values}", str(values)):
        assert find_model(spec, "", SHAPE).name == "mistral"
    for spec in (f"hf:{folder}", str(folder)):
        assert find_model(spec, "", SHAPE).folder == folder
    assert find_model("hf:gpt2", "", SHAPE).sample_batch(2)[0].shape == (2, 8)


def test_models_that_are_not_there_are_refused(values, folder):
    for spec, config, problem in [
        ("qwen2", "", "a model type is written hf:qwen2"),
        ("", str(values), "say of which type, like --model hf:qwen2"),
        (str(folder), str(values), "has a configuration of its own"),
    ]:
        with pytest.raises(UsageError, match=problem):
            find_model(spec, config, SHAPE)
    with pytest.raises(UsageError, match="dim is of the reference transformer"):
        find_model("hf:gpt2", "", ModelConfig(dim=64, sequence=8))
    values.write_text(json.dumps(SMALL | {"model_type": "llama"}))
    with pytest.raises(UsageError, match="those of model_type 'llama', not of qwen2"):
        find_model("hf:qwen2", str(values), SHAPE)


def test_a_model_with_too_few_tokens_for_bytes_is_refused(values):
    values.write_text(json.dumps(SMALL | {"vocab_size": 255}))
    with pytest.raises(UsageError, match="needs a vocabulary of 256, not 255"):
        find_encoding(find_model("hf:qwen2", str(values), SHAPE))


def data_of(text, encode, sequence=8):
    config = TrainConfig(
        run=RunConfig(microbatches=2),
        model=ModelConfig(sequence=sequence),
        data=DataConfig(paths=(str(text),), batch_size=4, held_back_share=0.4),
    )
    return load_data(config, encode)


def test_the_tokenizer_of_a_folder_makes_the_tokens(folder, text):
    data = data_of(text, find_encoding(find_model(str(folder), "", SHAPE)))
    assert data.unit == "tokens"
    for x, y in (data.batch(3), data.eval_batch(1)):
        assert x.shape == y.shape == (4, 8)
        assert x.dtype == torch.int64
        tokens = torch.cat([x, y[:, -1:]], dim=1)[:, 1:]  # a text may begin within a word
        assert torch.equal(x[:, 1:], y[:, :-1])
        assert torch.equal(tokens[:, 1:], tokens[:, :-1] % 3 + 1)
    assert torch.equal(data.batch(3)[0], data.batch(3)[0])
    assert not torch.equal(data.batch(3)[0], data.batch(4)[0])


def test_texts_with_few_tokens_are_read_further_and_then_refused(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(("word" * 40 + " ") * 12)
    data = data_of(path, lambda parts: [list(map(len, part.split())) for part in parts], sequence=3)
    assert data.batch(0)[0].shape == (4, 3)
    path.write_text("word" * 500)
    data = data_of(path, lambda parts: [list(map(len, part.split())) for part in parts], sequence=3)
    with pytest.raises(UsageError, match="fewer than the 4 tokens of a sequence"):
        data.batch(0)


def test_a_tokenizer_that_does_not_fit_is_refused(folder):
    config = json.loads((folder / "tokenizer.json").read_text())
    config["model"]["vocab"] = {**WORDS, **{f"word{i}": i for i in range(4, 300)}}
    (folder / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="has 300 tokens, but the model has only 256"):
        find_encoding(find_model(str(folder), "", SHAPE))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*tokenizer.json"):
        find_encoding(find_model(str(folder), "", SHAPE))


def test_a_run_trains_a_model_of_hugging_face(values, text, tmp_path, capsys):
    flags = "-p 1 -m 2 --batch-size 4 --sequence 8 --steps 8 --eval-batches 1 --threads 1"
    out = tmp_path / "run"
    named = ["--model", "hf:qwen2", "--config", str(values), "--paths", str(text)]
    assert main(["train", *flags.split(), *named, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for expected in (
        "rank 0: layers embedding to head, 0.01 M parameters",
        "stage 0: 100% of parameter-gradient FLOPs in W; norms in B",
        "nats per byte",
    ):
        assert expected in printed
    assert "forecast" not in printed
    losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] == pytest.approx(np.log(256), abs=0.15)
    assert losses[-1] < losses[0]
    assert 'source = "hf:qwen2"' in (out / "config.toml").read_text()
