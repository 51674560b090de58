import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerobubble.errors import UsageError
from zerobubble.train.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from zerobubble.train.data import TextData, load_data


def config_for(*paths, share=0.25, sequence=8, batch_size=8, seed=0):
    return TrainConfig(
        run=RunConfig(seed=seed),
        model=ModelConfig(sequence=sequence),
        data=DataConfig(paths=tuple(map(str, paths)), batch_size=batch_size, held_back_share=share),
    )


@pytest.fixture
def folder(tmp_path):
    """Four files of 100 bytes, each of a letter of its own."""
    (tmp_path / "below").mkdir()
    for name in ("a", "b", "below/c", "below/d"):
        (tmp_path / name).write_text(name[-1] * 100)
    return tmp_path


@given(length=st.integers(30, 200), sequence=st.integers(1, 20), step=st.integers(0, 99))
def test_targets_are_the_bytes_that_follow_the_inputs(length, sequence, step):
    text = np.arange(length, dtype=np.uint8)
    data = TextData(text, text + 1, batch_size=4, sequence=sequence)
    for x, y in (data.batch(step), data.eval_batch(step)):
        assert x.shape == y.shape == (4, sequence)
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(y, x + 1)
        assert torch.equal(x, x[:, :1] + torch.arange(sequence))


def test_training_sequences_reach_both_ends_of_the_text():
    text = np.arange(12, dtype=np.uint8)
    data = TextData(text, text, batch_size=200, sequence=8)
    x, y = data.batch(0)
    assert set(x[:, 0].tolist()) == {0, 1, 2, 3}
    assert y.max() == 11


def test_a_batch_depends_on_seed_and_step_alone(folder):
    first, second = (load_data(config_for(folder, seed=3)) for _ in range(2))
    second.batch(4)
    second.eval_batch(2)
    assert torch.equal(first.batch(5)[0], second.batch(5)[0])
    assert not torch.equal(first.batch(5)[0], first.batch(6)[0])
    assert not torch.equal(first.batch(5)[0], load_data(config_for(folder, seed=4)).batch(5)[0])


def test_another_process_gets_the_same_batch(folder):
    code = (
        "import sys; from zerobubble.train.data import *; from zerobubble.train.config import *;"
        "config = TrainConfig(data=DataConfig(paths=(sys.argv[1],), batch_size=8, "
        "held_back_share=.25), model=ModelConfig(sequence=8));"
        "print(load_data(config).batch(5)[0].tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == str(load_data(config_for(folder)).batch(5)[0].tolist())


def test_evaluation_uses_every_sequence_once_before_it_repeats():
    held_back = np.arange(8 * 5 + 1, dtype=np.uint8)
    data = TextData(held_back, held_back, batch_size=2, sequence=8, seed=1)
    starts = [data.eval_batch(index)[0][:, 0].tolist() for index in range(5)]
    flat = [start for pair in starts for start in pair]
    assert sorted(flat[:5]) == [0, 8, 16, 24, 32]
    assert flat[5:] == flat[:5]
    assert flat[:5] != sorted(flat[:5])


def test_evaluation_does_not_depend_on_the_seed():
    text = np.arange(200, dtype=np.uint8)
    first, second = (TextData(text, text, batch_size=4, sequence=8, seed=seed) for seed in (0, 1))
    assert torch.equal(first.eval_batch(0)[0], second.eval_batch(0)[0])
    assert not torch.equal(first.batch(0)[0], second.batch(0)[0])


def test_held_back_files_are_not_trained_on(folder):
    data = load_data(config_for(folder))
    assert len(data.training_N) == 300
    assert len(data.held_back_N) == 100
    assert len(set(data.held_back_N.tolist())) == 1
    assert set(data.held_back_N.tolist()).isdisjoint(data.training_N.tolist())


def test_one_file_is_divided_into_two_texts_without_overlap(tmp_path):
    text = bytes(range(200))
    (tmp_path / "text").write_bytes(text)
    data = load_data(config_for(tmp_path / "text", share=0.1))
    assert data.training_N.tobytes() == text[:180]
    assert data.held_back_N.tobytes() == text[180:]


def test_copies_and_places_of_files_change_nothing(folder):
    once = load_data(config_for(folder))
    (folder / "copy").write_text("a" * 100)
    again = load_data(config_for(folder / "below", folder, folder / "b"))
    assert once.training_N.tobytes() == again.training_N.tobytes()
    assert once.held_back_N.tobytes() == again.held_back_N.tobytes()


def test_hidden_and_binary_files_of_a_folder_are_left_out(folder):
    expected = load_data(config_for(folder))
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "file").write_text("x" * 100)
    (folder / ".file").write_text("y" * 100)
    (folder / "empty").write_text("")
    (folder / "binary").write_bytes(b"z\0" * 100)
    found = load_data(config_for(folder))
    assert found.training_N.tobytes() == expected.training_N.tobytes()


def test_a_binary_file_that_is_named_is_read_as_bytes(tmp_path):
    (tmp_path / "binary").write_bytes(b"\0\xff" * 50)
    data = load_data(config_for(tmp_path / "binary"))
    assert set(data.training_N.tolist()) == {0, 255}


def test_the_default_is_the_standard_library():
    data = load_data(config_for(share=0.05, sequence=128))
    text = data.training_N.tobytes() + data.held_back_N.tobytes()
    assert len(text) > 3_000_000
    assert len(data.held_back_N) == round(0.05 * len(text))
    assert b"class JSONDecoder" in text
    assert b"class IdleConf" not in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "cannot read {path}: No such file or directory"),
        ("empty", b"", "{path} holds no text: give a file or a folder of text"),
        (
            "short",
            b"x" * 10,
            "8 bytes of text for training are less than one sequence of 9 bytes: "
            "give more text or a shorter sequence",
        ),
        (
            "brief",
            b"x" * 20,
            "5 bytes of text for evaluation are less than one sequence of 9 bytes: "
            "give more text or a shorter sequence",
        ),
    ],
)
def test_text_that_cannot_be_used_is_refused_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        load_data(config_for(path))
    assert str(refusal.value) == message.format(path=path)


def test_a_folder_without_text_is_refused_in_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError) as refusal:
        load_data(config_for(tmp_path))
    assert str(refusal.value) == f"{tmp_path} holds no text: give a file or a folder of text"
