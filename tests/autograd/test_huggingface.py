"""Are the gradients of Hugging Face's own models bit for bit those of a plain backward?

The models are built from a config with random weights: nothing is downloaded.
"""

import pytest
import torch

import zerobubble as zb

transformers = pytest.importorskip("transformers")

NUM_MICROBATCHES, NUM_LAYERS, NUM_EXPERTS = 3, 2, 4
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
GPT2_SIZES = {"vocab_size": 40, "n_embd": 32, "n_layer": NUM_LAYERS, "n_head": 4, "n_positions": 16}
MIXTRAL_SIZES = SIZES | {"num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 2}
BLOCK = 7  # q, k, v, o, gate, up, down
EMBEDDING_AND_HEAD = 2

# Config, its options, how the experts run, and the ops that one microbatch leaves to W.
MODELS = {
    "gpt2": ("GPT2Config", GPT2_SIZES, None, 4 * NUM_LAYERS + EMBEDDING_AND_HEAD + 1),
    "llama": ("LlamaConfig", SIZES, None, BLOCK * NUM_LAYERS + EMBEDDING_AND_HEAD),
    "qwen2": ("Qwen2Config", SIZES, None, BLOCK * NUM_LAYERS + EMBEDDING_AND_HEAD),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 8}, None, BLOCK * NUM_LAYERS + 2),
    # Of an expert that no token goes to, nothing runs: here each gets some.
    "mixtral eager": (
        "MixtralConfig",
        MIXTRAL_SIZES,
        "eager",
        (5 + 2 * NUM_EXPERTS) * NUM_LAYERS + 2,
    ),
    "mixtral grouped": ("MixtralConfig", MIXTRAL_SIZES, "grouped_mm", (5 + 2) * NUM_LAYERS + 2),
    "mixtral batched": ("MixtralConfig", MIXTRAL_SIZES, "batched_mm", 5 * NUM_LAYERS + 2),
}
ORDERS = {
    "W at once": "F0 B0 W0 F1 B1 W1 F2 B2 W2",
    "W last": "F0 B0 F1 B1 F2 B2 W0 W1 W2",
    "all F first": "F0 F1 F2 B0 B1 W0 B2 W1 W2",
    "1F1B": "F0 F1 B0 F2 B1 W0 B2 W1 W2",
}


def _build(name):
    kind, sizes, experts, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(bos_token_id=0, eos_token_id=0, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if experts:
        model.set_experts_implementation(experts)
    return model


def _batches():
    torch.manual_seed(1)
    return [torch.randint(0, SIZES["vocab_size"], (2, 12)) for _ in range(NUM_MICROBATCHES)]


def _call(model):
    return lambda tokens: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def _plain(name):
    model, batches = _build(name), _batches()
    torch.manual_seed(2)  # GPT-2 has dropout
    for tokens in batches:
        _call(model)(tokens).backward()
    return {key: p.grad for key, p in model.named_parameters()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_backward(name, order):
    model, batches, calls = _build(name), _batches(), {}
    torch.manual_seed(2)
    for op in ORDERS[order].split():
        kind, i = op[0], int(op[1])
        if kind == "F":
            calls[i] = zb.splitting(_call(model))(batches[i])
        elif kind == "B":
            calls[i].backward_input()
            assert len(calls[i].queue) == MODELS[name][-1]
        else:
            calls[i].backward_weight()
    expected, found = _plain(name), {key: p.grad for key, p in model.named_parameters()}
    different = [key for key, g in expected.items() if not torch.equal(found[key], g)]
    assert found.keys() == expected.keys()
    assert different == []


def _report(name):
    tokens = _batches()[0]
    return zb.split_report(_build(name), input_ids=tokens, labels=tokens, use_cache=False)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixtral batched"])
def test_all_products_are_left_to_w(name):
    report = _report(name)
    assert report.deferred_share == 1.0
    assert report.summary == "100% of parameter-gradient FLOPs in W; norms in B"


def test_copies_of_the_weights_of_chosen_experts_stay_in_b():
    """The batched way copies a matrix for every token and expert: its product has no parameter."""
    report, grouped = _report("mixtral batched"), _report("mixtral grouped")
    reasons = {row.parameter: row.reason for row in report.rows if "experts" in row.parameter}
    assert len(reasons) == 2 * NUM_LAYERS
    assert set(reasons.values()) == {"aten::bmm: no split for this way to call it"}
    in_w = sum(row.flops_in_w for row in report.rows)
    in_b = sum(row.flops_in_b for row in report.rows)
    assert in_w + in_b == sum(row.flops_in_w for row in grouped.rows)


def test_experts_count_the_same_whichever_way_they_run():
    eager, grouped = _report("mixtral eager"), _report("mixtral grouped")
    assert eager.rows == grouped.rows
