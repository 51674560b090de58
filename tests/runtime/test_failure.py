"""Is the right rank blamed when a connection breaks?"""

import pytest

from zerobubble.errors import PipelineError
from zerobubble.ir import F
from zerobubble.lower import Action, Instruction
from zerobubble.runtime.failure import describe, naming_the_cause
from zerobubble.runtime.transport import LostRankError

LOST = LostRankError(2, RuntimeError("Connection closed by peer"))


def test_a_broken_connection_between_ops_names_its_peer():
    with pytest.raises(PipelineError) as raised, naming_the_cause(0, "optimizer step 1"):
        raise LOST
    assert str(raised.value) == (
        "rank 0, optimizer step 1: stopped, because of rank 0 lost rank 2, optimizer step 1: "
        "Connection closed by peer"
    )


def test_a_broken_connection_while_the_loss_is_sent_is_not_the_fault_of_the_sender():
    error = describe(LOST, 1, 3, Instruction(Action.REPORT, F(1, 0)))
    assert str(error) == (
        "rank 1, F0 of stage 1, step 3: stopped, because of rank 1 lost rank 2 at "
        "REPORT F0 of stage 1, step 3: Connection closed by peer"
    )
