"""When activations cannot be kept or come back changed, do all ranks stop and say why?"""

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.dist import models
from tests.dist.harness import launch
from tests.dist.test_failures import assert_all_ended_soon
from zerobubble import Pipeline
from zerobubble.ir import BW, F, L, O, Schedule, linear
from zerobubble.runtime import Offload

FAILING = 1
# Both microbatches of both stages leave, one after the other, and come back.
OPS = [[F(s, 0), O(s, 0), F(s, 1), O(s, 1), L(s, 0), BW(s, 0), L(s, 1), BW(s, 1)] for s in range(2)]
SCHEDULE = Schedule.from_ops("moved", linear(2), 2, OPS)


class Spoiler(nn.Module):
    """Overwrites what its own rank has written, when the second step has come to F1."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.num_runs = directory, 0

    def forward(self, x):
        self.num_runs += 1
        if self.num_runs == 4 and self.directory:
            (path,) = Path(self.directory).glob(f"*-rank{FAILING}-*")
            path.write_bytes(b"spoilt " * path.stat().st_size)
        return x


def train(rank, options, spoilt="", largest_file=None):
    layers = models.built(models.transformer())
    layers[-2] = nn.Sequential(layers[-2], Spoiler(spoilt))
    if rank == FAILING and largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    offload = Offload(**(options if rank == FAILING else {}), smallest_bytes=1)
    pipe = Pipeline(layers, SCHEDULE, models.loss_fn, offload=offload)
    opt = pipe.optimizer(torch.optim.SGD, lr=0.1)
    for _ in range(2):
        pipe.step(*models.tokens(4))
        opt.step()


def assert_cause(outcomes, start, end):
    """Assert that the failing rank raises, and that the other one stops because of that."""
    assert_all_ended_soon(outcomes)
    kind, cause = outcomes[FAILING].error
    assert kind == "PipelineError", outcomes[FAILING].traceback
    assert cause.startswith(f"rank {FAILING}, {start}"), cause
    assert cause.endswith(end), cause
    assert outcomes[0].error[0] == "PipelineError", outcomes[0].traceback
    assert outcomes[0].error[1].endswith(f"stopped, because of {cause}")
    return cause


def test_a_full_disk(tmp_path):
    outcomes = launch(train, 2, {"directory": tmp_path}, "", 3000)
    start = "O0 of stage 1, step 1: OffloadError: cannot write "
    end = "File too large: free space there, or offload to another folder"
    assert f" bytes to {tmp_path}/" in assert_cause(outcomes, start, end)
    assert not list(tmp_path.iterdir())


def test_a_full_host_pool():
    outcomes = launch(train, 2, {"host_memory": 10_000})
    start = "O1 of stage 1, step 1: OffloadError: "
    end = "at most 10000 bytes: raise the limit, offload less, or offload to a file"
    assert "bytes do not fit into the host pool, which holds " in assert_cause(outcomes, start, end)


def test_a_corrupted_file(tmp_path):
    options = {"directory": tmp_path, "verify": True}
    outcomes = launch(train, 2, options, str(tmp_path))
    start = "BW0 of stage 1, step 2: OffloadError: "
    end = "the memory or disk there is faulty, or something else writes to it"
    cause = assert_cause(outcomes, start, end)
    assert f"offloaded bytes came back changed from {tmp_path}/zerobubble-offload-" in cause
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    outcomes = launch(train, 2, {"directory": tmp_path / "file"})
    assert_all_ended_soon(outcomes)
    kind, message = outcomes[FAILING].error
    assert kind == "UsageError"
    assert message.startswith(f"cannot offload to the folder {tmp_path}/file: ")
    assert message.endswith(": choose a folder that can be written to")
    assert message in outcomes[0].error[1]
