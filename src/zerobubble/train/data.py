"""Which part of the text does step number n train on?

Text is a sequence of bytes, so the vocabulary has 256 entries; a model with a tokenizer gets parts
of the same text, encoded when a step needs them. All files are joined in the order of
their contents' SHA-256 digests and the last share of the whole is held back: that is a random
sample of whole files (at most one file is divided), it does not depend on where the files lie, and
it is the same on every rank. Files with equal contents count once, so that no copy of a held-back
file is trained on. Of a folder, hidden files and files that begin with binary data are left out.

Shape suffixes: ``B`` sequences of a batch, ``T`` positions of a sequence, ``N`` bytes of a text.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zerobubble.errors import UsageError
from zerobubble.train.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

# Tests, generated tables and what is not part of the library itself.
_STDLIB_SKIPPED = frozenset(
    {"dist-packages", "encodings", "idlelib", "pydoc_data", "site-packages", "test", "tests"}
)

Encode = Callable[[list[bytes]], list[list[int]]]
"""Turns parts of a text into tokens."""

_BYTES_OF_A_TOKEN = 8  # more than most have, so that a part is seldom too short


@dataclass(frozen=True)
class TextData:
    """Batches of ``batch_size`` sequences out of two texts that share no byte.

    Every method is a function of its arguments alone: any rank, in any order, gets equal batches.
    Sequences have ``sequence`` bytes or, with ``encode``, as many tokens.
    """

    training_N: NDArray[np.uint8]
    held_back_N: NDArray[np.uint8]
    batch_size: int
    sequence: int
    seed: int = 0
    encode: Encode | None = None

    @property
    def unit(self) -> str:
        """Name what a sequence consists of."""
        return "bytes" if self.encode is None else "tokens"

    @property
    def _width(self) -> int:
        """Number of bytes that are read for a sequence, without the target of its end."""
        return self.sequence * (1 if self.encode is None else _BYTES_OF_A_TOKEN)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a training step, int64 ``[B, T]`` each.

        Sequences start at random places of the training text; a target is the byte that follows.
        """
        generator = np.random.default_rng((self.seed, step))
        num_starts = len(self.training_N) - self._width
        starts_B = generator.integers(0, num_starts, size=self.batch_size)
        return self._sequences(self.training_N, starts_B)

    def eval_batch(self, index: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of evaluation batch ``index``, int64 ``[B, T]`` each.

        The held-back text is cut into sequences that do not overlap, taken in a shuffled order
        that does not depend on the seed; once all were used they come again.
        """
        num_sequences = (len(self.held_back_N) - 1) // self._width
        order = np.random.default_rng(0).permutation(num_sequences)
        places_B = np.arange(index * self.batch_size, (index + 1) * self.batch_size)
        starts_B = order[places_B % num_sequences] * self._width
        return self._sequences(self.held_back_N, starts_B)

    def _sequences(
        self, text_N: NDArray[np.uint8], starts_B: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        import torch  # here, so that finding and checking the text does not wait for torch

        if self.encode is None:
            windows = text_N[starts_B[:, None] + np.arange(self.sequence + 1)].astype(np.int64)
        else:
            tokens = [self._encoded(text_N, int(start), self.encode) for start in starts_B]
            windows = np.array(tokens, dtype=np.int64)
        window_tensor = torch.from_numpy(windows)
        return window_tensor[:, :-1].contiguous(), window_tensor[:, 1:].contiguous()

    def _encoded(self, text_N: NDArray[np.uint8], start: int, encode: Encode) -> list[int]:
        """Encode as much text as gives a sequence and the target of its end."""
        width = self._width
        while width <= len(text_N):
            part = text_N.take(np.arange(start, start + width), mode="wrap")
            if len(tokens := encode([part.tobytes()])[0]) > self.sequence:
                return tokens[: self.sequence + 1]
            width *= 2
        raise UsageError(
            f"a text of {len(text_N)} bytes has fewer than the {self.sequence + 1} tokens of a "
            "sequence: give more text or a shorter sequence"
        )


def load_data(config: TrainConfig, encode: Encode | None = None) -> TextData:
    """Read the text of ``config.data`` into memory, one byte of it per byte of text.

    Args:
        config: of the run.
        encode: turns it into the model's tokens; None where these are the bytes.

    Raises:
        UsageError: a path is missing, unreadable or has no text, or there is less text than one
            sequence for training or for evaluation.
    """
    texts = [text for path in config.data.paths for text in _texts(Path(path))]
    text_N = _joined(texts or _standard_library_texts())
    num_held_back = round(len(text_N) * config.data.held_back_share)
    training_N, held_back_N = np.split(text_N, [len(text_N) - num_held_back])
    data = TextData(
        training_N,
        held_back_N,
        config.data.batch_size,
        config.model.sequence,
        config.run.seed,
        encode,
    )
    needed = data._width + 1
    for purpose, part_N in (("training", training_N), ("evaluation", held_back_N)):
        if len(part_N) < needed:
            raise UsageError(
                f"{len(part_N)} bytes of text for {purpose} are less than one sequence of "
                f"{needed} bytes: give more text or a shorter sequence"
            )
    return data


def _texts(path: Path) -> list[bytes]:
    if not os.path.isdir(path):
        texts = [_content(path)]
    else:
        texts = [text for text in map(_content, _files_below(path)) if b"\0" not in text[:8192]]
    if not any(texts):
        raise UsageError(f"{path} holds no text: give a file or a folder of text")
    return texts


def _files_below(folder: Path, skipped: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files below a folder, outside of hidden and skipped folders."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        files = (Path(root, name) for name in names if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def _standard_library_texts() -> list[bytes]:
    files = _files_below(Path(sysconfig.get_paths()["stdlib"]), _STDLIB_SKIPPED)
    return [_content(file) for file in files if file.suffix == ".py"]


def _joined(texts: list[bytes]) -> NDArray[np.uint8]:
    by_digest = {hashlib.sha256(text).digest(): text for text in texts}
    return np.frombuffer(b"".join(by_digest[key] for key in sorted(by_digest)), dtype=np.uint8)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
