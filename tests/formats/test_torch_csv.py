"""Does PyTorch read the very schedule that was written?"""

import csv

import pytest
from torch.distributed.pipelining.schedules import _Action

from zerobubble import ScheduleError, UsageError, build
from zerobubble.formats.torch_csv import save
from zerobubble.ir import BW, F, Kind, L, O, R, Schedule, linear
from zerobubble.schedules import REGISTRY

KINDS = {"F": Kind.F, "I": Kind.B, "W": Kind.W, "B": Kind.BW}


@pytest.mark.parametrize("name", REGISTRY)
def test_torch_reads_the_same_ops_in_the_same_order(name, tmp_path):
    try:
        schedule = build(name, num_ranks=4, num_microbatches=8)
    except ScheduleError as error:
        pytest.skip(str(error))
    if schedule.has_copies:
        pytest.skip("PyTorch has no word for O and L")
    save(schedule, tmp_path / "schedule.csv")
    with open(tmp_path / "schedule.csv", newline="") as file:
        rows = [[_Action.from_str(cell) for cell in row] for row in csv.reader(file)]
    read = [
        [(KINDS[a.computation_type.value], a.stage_index, a.microbatch_index) for a in row]
        for row in rows
    ]
    assert read == [list(schedule.ops(rank)) for rank in range(4)]


@pytest.mark.parametrize("moves", [(O(0, 0), L(0, 0)), (R(0, 0),)])
def test_what_pytorch_has_no_word_for_is_refused_and_no_file_written(moves, tmp_path):
    schedule = Schedule.from_ops("mine", linear(1), 1, [[F(0, 0), *moves, BW(0, 0)]])
    with pytest.raises(
        ScheduleError, match=f"no word for {moves[0]}: export a schedule that keeps"
    ):
        save(schedule, tmp_path / "schedule.csv")
    assert not [*tmp_path.iterdir()]


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        save(build("1f1b", 1, 1), tmp_path / "missing" / "schedule.csv")
