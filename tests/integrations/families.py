"""Small models of each family with random weights, whole and without a pipeline."""

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from zerobubble.integrations.huggingface import shift_labels

VOCABULARY, LENGTH = 128, 12
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}
WINDOW = {"sliding_window": 4}
GEMMA = {"head_dim": 8, "tie_word_embeddings": True}
MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Model type, and the values of its configuration.
FAMILIES = {
    "llama": ("llama", SIZES),
    "llama tied": ("llama", SIZES | {"tie_word_embeddings": True}),
    "llama eager": ("llama", SIZES | {"attn_implementation": "eager"}),
    "qwen2": ("qwen2", SIZES),
    "qwen2 windows": (
        "qwen2",
        SIZES | WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", SIZES | {"head_dim": 8}),
    "mistral": ("mistral", SIZES | WINDOW),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("gpt2", GPT2 | NO_DROPOUT),
    "gemma": ("gemma", SIZES | GEMMA),
    "gemma2": ("gemma2", SIZES | GEMMA | WINDOW | MIXED),
    "gemma3": ("gemma3_text", SIZES | GEMMA | WINDOW | MIXED),
}


def config(family):
    kind, values = FAMILIES[family]
    return AutoConfig.for_model(kind, **values)


def whole(family, dtype=torch.float32):
    """Build the model as transformers does; its norms get values of their own too."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(family), dtype=dtype)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.1)
    return model.train()


def batch(num_samples, padded=False):
    """Draw tokens, their shifted labels, and keywords that say which are padding on the left.

    Of the first samples more labels are ignored than of the last.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(1, VOCABULARY, (num_samples, LENGTH), generator=generator)
    y = shift_labels(x)
    for sample in range(num_samples // 2):
        y[sample, : 2 + sample] = -100
    if not padded:
        return x, y, {}
    mask = torch.ones_like(x)
    for sample in range(num_samples // 2):
        mask[sample, : 1 + sample] = 0
    return x, y, {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def plain_step(model, x, y, keywords, num_microbatches):
    """Add the gradients of the model's own loss over all microbatches, and return the loss."""
    total = 0.0
    parts = zip(
        x.tensor_split(num_microbatches),
        y.tensor_split(num_microbatches),
        *(value.tensor_split(num_microbatches) for value in keywords.values()),
        strict=True,
    )
    for x_i, y_i, *others in parts:
        own = dict(zip(keywords, others, strict=True))
        loss = model(x_i, labels=y_i, shift_labels=y_i, use_cache=False, **own).loss
        part = loss / num_microbatches
        part.backward()
        total = total + part.detach()
    return total


def mean_loss(logits, labels):
    """Compute the mean cross-entropy over the labels that count."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)
