"""How does a causal LM of Hugging Face transformers become the layers of a pipeline?

Its own classes compute everything. The model is built once without memory for its parameters, and
each layer of the pipeline is a copy of a part of it that gets values where the layer is needed.
"""

from importlib.util import find_spec

from zerobubble.errors import UsageError

if missing := [name for name in ("transformers", "safetensors") if find_spec(name) is None]:
    raise UsageError(
        f"Hugging Face models need {' and '.join(missing)}: pip install 'zerobubble[huggingface]'"
    )

from zerobubble.integrations.huggingface.loss import batch_targets, next_token_loss, shift_labels
from zerobubble.integrations.huggingface.model import CausalLM, causal_lm
from zerobubble.integrations.huggingface.saving import save_pretrained
from zerobubble.integrations.huggingface.tokens import read_tokenizer

__all__ = [
    "CausalLM",
    "batch_targets",
    "causal_lm",
    "next_token_loss",
    "read_tokenizer",
    "save_pretrained",
    "shift_labels",
]
