"""Does PyTorch read the very schedule that was written?"""

import csv

import pytest
from torch.distributed.pipelining.schedules import _Action

from zerobubble import ScheduleError, UsageError, build
from zerobubble.formats.torch_csv import save
from zerobubble.ir import Kind
from zerobubble.schedules import REGISTRY

KINDS = {"F": Kind.F, "I": Kind.B, "W": Kind.W, "B": Kind.BW}


@pytest.mark.parametrize("name", REGISTRY)
def test_torch_reads_the_same_ops_in_the_same_order(name, tmp_path):
    try:
        schedule = build(name, num_ranks=4, num_microbatches=8)
    except ScheduleError as error:
        pytest.skip(str(error))
    save(schedule, tmp_path / "schedule.csv")
    with open(tmp_path / "schedule.csv", newline="") as file:
        rows = [[_Action.from_str(cell) for cell in row] for row in csv.reader(file)]
    read = [
        [(KINDS[a.computation_type.value], a.stage_index, a.microbatch_index) for a in row]
        for row in rows
    ]
    assert read == [list(schedule.ops(rank)) for rank in range(4)]


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        save(build("1f1b", 1, 1), tmp_path / "missing" / "schedule.csv")
