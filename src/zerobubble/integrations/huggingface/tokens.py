"""How does the tokenizer of a checkpoint folder turn text into tokens?"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from zerobubble.errors import UsageError
from zerobubble.integrations.huggingface.source import one_line


def read_tokenizer(file: Path, vocabulary: int) -> Callable[[list[bytes]], list[list[int]]]:
    """Read a ``tokenizer.json``, and give the function that encodes parts of a text.

    Args:
        file: of the tokenizer.
        vocabulary: number of tokens that the model knows.

    Raises:
        UsageError: the file cannot be read, or has more tokens than the model.
    """
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise UsageError(f"cannot read {file}: {one_line(error)}") from None
    if (size := tokenizer.get_vocab_size()) > vocabulary:
        raise UsageError(f"{file} has {size} tokens, but the model has only {vocabulary}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return partial(_encode, tokenizer)


def _encode(tokenizer: Any, parts: list[bytes]) -> list[list[int]]:
    """Encode parts that may begin and end within a character; what is left of it is dropped."""
    texts = [part.decode("utf-8", errors="ignore") for part in parts]
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]
