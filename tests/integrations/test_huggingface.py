"""Are the layers of Hugging Face models the model, and are weights read and written right?"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import zerobubble as zb
from tests.integrations import families
from zerobubble.integrations.huggingface import (
    batch_targets,
    causal_lm,
    next_token_loss,
    save_pretrained,
)

SAVED = ("llama", "llama tied", "gpt2", "mixtral", "gemma3")
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save the model of a family as transformers does, once; in several files if large is False."""
    found = {}

    def of(family, shard="1GB"):
        if (family, shard) not in found:
            folder = tmp_path_factory.mktemp("saved")
            families.whole(family).save_pretrained(folder, max_shard_size=shard)
            found[family, shard] = folder
        return found[family, shard]

    return of


@pytest.fixture
def copied(saved, tmp_path):
    """Copy a saved folder, to be spoiled."""
    for file in saved("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def run(model, x, **keywords):
    """Feed tokens through all layers in evaluation mode."""
    layers = [build().eval() for build in model.layers]
    positions = {k: v for k, v in keywords.items() if k == "position_ids"}
    with torch.no_grad():
        value = layers[0](x, **positions)
        for layer in layers[1:-1]:
            value = layer(value, **keywords)
        return layers[-1](value)


def pipeline(model, **options):
    return zb.Pipeline(model, zb.build("zb-h1", 1, 2), **options)


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize("family", SAVED)
def test_a_saved_folder_gives_the_logits_of_the_model(saved, family, shard):
    folder = saved(family, shard)
    assert (folder / INDEX).exists() == (shard == "20KB")
    x, _, keywords = families.batch(4, padded=True)
    model = causal_lm(folder, sequence=families.LENGTH)
    with torch.no_grad():
        expected = families.whole(family).eval()(x, **keywords).logits
    assert torch.equal(run(model, x, **keywords), expected)


@pytest.mark.parametrize("family", SAVED)
def test_transformers_loads_what_a_pipeline_saves(tmp_path, family):
    model = causal_lm(families.config(family), sequence=families.LENGTH)
    pipe = pipeline(model, seed=3)
    save_pretrained(pipe, model, tmp_path / "new")
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    assert ("lm_head.weight" in index["weight_map"]) == (not model.tied)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert type(loaded) is type(families.whole(family))
    state, expected = loaded.state_dict(), pipe.state_dict()
    assert state.keys() == expected.keys()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []
    again = pipeline(causal_lm(tmp_path / "new", sequence=families.LENGTH)).state_dict()
    assert [name for name in state if not torch.equal(again[name], expected[name])] == []


def test_a_model_is_not_saved_over_another_and_not_lost(tmp_path):
    model = causal_lm(families.config("llama"), sequence=families.LENGTH)
    pipe = pipeline(model)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text("{}")
    written = [save_pretrained(pipe, model, tmp_path / "mine") for _ in range(3)]
    assert [path.name for path in written] == ["mine", "mine-2", "mine-3"]
    files = {path.name: sorted(file.name for file in path.iterdir()) for path in written}
    assert files["mine"] == sorted([*files["mine-2"], "tokenizer.json"])
    assert files["mine-2"] == files["mine-3"]
    (tmp_path / "file").write_text("")
    with pytest.raises(zb.UsageError, match="cannot make the folder"):
        save_pretrained(pipeline(model), model, tmp_path / "file" / "new")


def test_parameters_of_a_folder_get_the_wanted_dtype(saved):
    model = causal_lm(saved("llama"), sequence=families.LENGTH, dtype=torch.bfloat16)
    state = model.layers[1]().state_dict()
    expected = families.whole("llama").model.layers[0].state_dict()
    for name, value in expected.items():
        assert torch.equal(state[f"model.layers.0.{name}"], value.bfloat16())


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "gemma2"])
def test_initial_values_are_spread_like_those_of_transformers(family):
    """Compared by parameter: the same constants, and standard deviations within sampling error."""
    torch.manual_seed(0)
    kind, values = families.FAMILIES[family]
    config = transformers.AutoConfig.for_model(kind, **values)
    expected = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    state = pipeline(causal_lm(config, sequence=4)).state_dict()
    for name, value in expected.items():
        if value.std() == 0:
            assert torch.equal(state[name], value), name
        else:
            assert state[name].std().item() == pytest.approx(
                value.std().item(), rel=5 / value.numel() ** 0.5
            ), name
            assert not torch.equal(state[name], value)


def test_masks_follow_the_shape_the_padding_and_what_is_written_to_it():
    model = causal_lm(families.config("qwen2 windows"), sequence=families.LENGTH)
    layers = [build() for build in model.layers]
    whole = families.whole("qwen2 windows")
    for layer in layers:
        layer.load_state_dict({name: whole.state_dict()[name] for name in layer.state_dict()})
    x, _, keywords = families.batch(4, padded=True)
    mask = keywords["attention_mask"]
    alike = [mask.clone(), mask.flip(0)]
    batches = [
        *((x, each) for each in alike),
        (x, None),
        (x[:3, :7], None),
        (x, mask),
        (x[:2], mask[:2]),
        (x, None),
        (x, mask),
    ]
    for x_i, mask_i in batches:
        assert torch.equal(_hidden(layers, x_i, mask_i), whole(x_i, mask_i).logits)
    mask[:, :4] = 0
    assert torch.equal(_hidden(layers, x, mask), whole(x, mask).logits)
    assert not torch.equal(whole(x, mask).logits, whole(x).logits)


def _hidden(layers, x, mask):
    value = layers[0](x)
    for layer in layers[1:-1]:
        value = layer(value, attention_mask=mask)
    return layers[-1](value)


def test_the_blocks_of_a_stage_share_masks_and_rotary_embeddings():
    model = causal_lm(families.config("llama eager"), sequence=families.LENGTH)
    _, first, second, *_ = [build() for build in model.layers]
    hidden = torch.zeros(2, 5, 32)
    calls = [b._surroundings.of_block(i, hidden, None, None) for i, b in enumerate((first, second))]
    assert calls[0].keywords["attention_mask"] is calls[1].keywords["attention_mask"]
    assert calls[0].keywords["attention_mask"].shape == (2, 1, 5, 5)


def test_layers_are_built_and_run_without_memory():
    """As a plan for a model that fits on no device needs them."""
    config = transformers.AutoConfig.for_model("llama", hidden_size=8192, num_hidden_layers=2)
    model = causal_lm(config, sequence=2048)
    with torch.device("meta"):
        layers = [build() for build in model.layers]
        value = torch.zeros(2, 2048, dtype=torch.int64)
        for layer in layers:
            value = layer(value)
    assert value.is_meta
    assert value.shape == (2, 2048, 32000)


def test_blocks_compute_their_activations_again_if_asked_to():
    options = {"sequence": families.LENGTH, "gradient_checkpointing": True}
    model, plain = (causal_lm(families.config("gpt2"), **o) for o in (options, {"sequence": 4}))
    pipes = [pipeline(model), pipeline(plain)]
    x, y, _ = families.batch(4)
    losses = [pipe.step(x, y) for pipe in pipes]
    assert losses[0] == losses[1]
    gradients = [dict(pipe.named_parameters()) for pipe in pipes]
    assert all(torch.equal(p.grad, gradients[1][name].grad) for name, p in gradients[0].items())
    assert model.layers[1]().transformer.h.get_submodule("0").gradient_checkpointing


def test_kinds_tell_blocks_apart_that_cost_different_times():
    kinds = {f: causal_lm(families.config(f), sequence=4).kinds for f in ("llama", "gemma2")}
    assert kinds["llama"] == ("embedding", *["block kind 0"] * 4, "head")
    assert kinds["gemma2"] == ("embedding", *["block kind 0", "block kind 1"] * 2, "head")


def test_a_batch_is_drawn_from_the_vocabulary():
    x, y = causal_lm(families.config("llama"), sequence=9).sample_batch(3)
    assert x.shape == y.shape == (3, 9)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert 0 <= int(x.min()) <= int(x.max()) < families.VOCABULARY


# Losses


def test_the_loss_of_a_microbatch_is_that_of_transformers():
    model = families.whole("llama")
    x, y, _ = families.batch(4)
    assert torch.equal(next_token_loss(model(x).logits, y), model(x, labels=y, shift_labels=y).loss)
    assert torch.equal(next_token_loss(model(x).logits, y), families.mean_loss(model(x).logits, y))


@pytest.mark.parametrize("num_samples", [4, 5])
def test_the_mean_over_a_batch_counts_every_label_once(num_samples):
    """Also with microbatches that have other numbers of labels or samples."""
    model = causal_lm(families.config("llama"), sequence=families.LENGTH)
    pipe = pipeline(model)
    x, y, _ = families.batch(num_samples)
    whole = families.whole("llama")
    pipe.load_state_dict(whole.state_dict())
    loss = pipe.step(x, batch_targets(y))
    expected = families.mean_loss(whole(x).logits, y)
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-6)
    gradients = {name: p.grad for name, p in pipe.named_parameters()}
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)
    assert float(pipe.step(x, y)) != pytest.approx(expected.item(), rel=1e-4)


def test_a_microbatch_without_labels_has_no_loss_and_a_batch_without_is_refused():
    ignored = torch.full((1, 3), -100)
    assert next_token_loss(torch.randn(1, 3, 8), ignored) == 0
    with pytest.raises(zb.UsageError, match="all labels of the batch are -100"):
        batch_targets(ignored)


# What is refused


def refused(source, match, **options):
    with pytest.raises(zb.UsageError, match=match) as caught:
        causal_lm(source, sequence=4, **options)
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_cut_are_refused_with_what_a_stage_needs():
    by_hand = r"stages need layers in order, .* pass them by hand, zb.Pipeline\(layers"
    for kind, why in {
        "t5": "it has an encoder and a decoder",
        "vit": "transformers has no causal LM of this type",
        "opt": "it has not one list of blocks",
        "gemma3n_text": "embed_tokens_per_layer.weight belongs to no layer",
        "bloom": "what flows from block to block is more than one hidden state",
        "zamba": "its blocks share more than masks and positions",
    }.items():
        refused(kind, f"cannot cut {kind} into stages: .*{why}; {by_hand}")
    refused("nonsense", "nonsense is no folder, no JSON file and no model type")
    refused(7, "not a int")


def test_what_no_stage_could_do_is_refused():
    mixtral = families.config("mixtral")
    mixtral.output_router_logits = True
    refused(mixtral, "set output_router_logits to false")
    llama = families.config("llama")
    with pytest.raises(zb.UsageError, match="a sequence must have 1 to 64 tokens"):
        causal_lm(llama, sequence=65)
    refused(llama, "cannot build llama: .*nonsense", attn_implementation="nonsense")
    llama.quantization_config = {"quant_method": "fp8"}
    refused(llama, "quantized parameters cannot be trained")


SIZES = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


def test_sizes_that_no_model_can_have_are_refused_by_name():
    for changed, problem in [
        ({"vocab_size": 0}, "configuration of qwen2: vocab_size is 0: write 1 or more"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_act": "nope"}, "transformers does not know hidden_act 'nope'"),
        ({"hidden_size": 30, "num_attention_heads": 7}, "7 is not a multiple of num_key_value_hea"),
        ({"hidden_size": 10}, "hidden_size 10 gives 2 num_attention_heads 5 channels each"),
    ]:
        refused("qwen2", problem, values=SIZES | changed)
    refused("gpt2", "n_head is 0", values={"n_head": 0})
    refused("mixtral", "num_experts_per_tok is 9", values=SIZES | {"num_experts_per_tok": 9})
    config = families.config("llama")
    config.vocab_size = 0
    refused(config, "vocab_size is 0")


def test_arguments_that_are_no_model_are_refused():
    for sequence in (1.5, True, "8", None):
        with pytest.raises(zb.UsageError, match="sequence must be a whole number of tokens"):
            causal_lm("qwen2", sequence=sequence, values=SIZES)
    for values in ([1], 3):
        refused("qwen2", "values must be those of the configuration by name", values=values)
    refused("", "the name of the Hugging Face model is empty")


def test_configurations_that_cannot_be_read_are_refused(tmp_path):
    file = tmp_path / "small.json"
    refused(file, "cannot read .*small.json")
    for text, problem in [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "model_type None is unknown"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "configuration of llama: .*hidden_size"),
    ]:
        file.write_text(text)
        refused(file, problem)


def test_folders_whose_weights_do_not_fit_are_refused_before_anything_is_built(copied):
    tensors = load_file(copied / ONE_FILE)
    name = "model.layers.2.mlp.up_proj.weight"

    def spoil(change, match):
        save_file(
            {k: v for k, v in {**tensors, **change}.items() if v is not None}, copied / ONE_FILE
        )
        refused(copied, match)

    spoil({name: None}, f"has no tensor for {name} of the model")
    spoil({name: torch.zeros(48, 31)}, rf"{name} of .*{ONE_FILE} .*\[48, 31\].*\[48, 32\]")
    spoil({name: torch.zeros(48, 32, dtype=torch.int8)}, f"{name} of .* has dtype I8")
    content = (copied / ONE_FILE).read_bytes()
    (copied / ONE_FILE).write_bytes(content[: len(content) // 2])
    refused(copied, f"{ONE_FILE} is damaged or incomplete")
    (copied / ONE_FILE).unlink()
    refused(copied, f"has neither {ONE_FILE} nor {INDEX}")
    (copied / "config.json").unlink()
    refused(copied, "cannot read .*config.json")


def test_indices_that_name_what_is_not_there_are_refused(saved, tmp_path):
    for file in saved("llama", "20KB").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    index = json.loads((tmp_path / INDEX).read_text())
    first = sorted(set(index["weight_map"].values()))[0]
    index["weight_map"]["more"] = first
    (tmp_path / INDEX).write_text(json.dumps(index))
    refused(tmp_path, f"{first} has no tensor more")
    (tmp_path / first).unlink()
    refused(tmp_path, f"{first} does not exist")


def test_an_index_whose_files_are_no_names_is_refused(copied):
    (copied / ONE_FILE).unlink()
    for file in (1, None, ["x"]):
        (copied / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
        refused(copied, "weight_map of a must be the name of a file")


def test_experts_that_are_missing_are_refused(saved, tmp_path):
    for file in saved("mixtral").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(Path(tmp_path, ONE_FILE))
    left_out = next(name for name in tensors if "experts.2" in name)
    save_file({k: v for k, v in tensors.items() if k != left_out}, tmp_path / ONE_FILE)
    refused(tmp_path, "experts")
