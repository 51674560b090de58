"""How is an op named within a picture, in few characters?"""

from zerobubble.ir import Op, Placement


def turns(placement: Placement) -> dict[int, int]:
    """Count for each stage how many stages the same rank holds before it.

    >>> turns(Placement((0, 1, 1, 0)))
    {0: 0, 3: 1, 1: 0, 2: 1}
    """
    ranks = range(placement.num_ranks)
    return {s: i for rank in ranks for i, s in enumerate(placement.stages_of(rank))}


def styled(kind: str, turn: int, number: str) -> str:
    """Let upper and lower case alternate from stage to stage of a rank; pairs add a ``'``.

    >>> [styled("F", turn, "7") for turn in range(4)]
    ['F7', 'f7', "F7'", "f7'"]
    """
    return (kind.lower() if turn % 2 else kind) + number + "'" * (turn // 2)


def label(op: Op, turn: int) -> str:
    """Name an op by its kind and microbatch, and by the turn of its stage."""
    return styled(op.kind.name, turn, str(op.microbatch))
