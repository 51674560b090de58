"""How much does a search try?"""

from dataclasses import dataclass

from zerobubble.errors import UsageError


@dataclass(frozen=True)
class Effort:
    """How much is tried, in ops placed, so that a larger problem gets fewer tries.

    Attributes:
        seeded: by the rules to start from, at each size.
        climbed: by climbing over templates at each size.
        num_climbs: how many climbs share them at the smallest size; half as many at each larger.
        shaped: by climbing over what the best templates lead to, stage by stage.
        justified: likewise with justification, where a rank has three or more stages.
        annealed: by annealing, for problems that are small enough for it.
    """

    seeded: int
    climbed: int
    num_climbs: int
    shaped: int
    justified: int
    annealed: int


EFFORTS = {
    "quick": Effort(120_000, 0, 0, 0, 0, 0),
    "default": Effort(800_000, 9_000_000, 5, 6_000_000, 20_000_000, 300_000_000),
    "thorough": Effort(3_000_000, 100_000_000, 20, 50_000_000, 150_000_000, 2_000_000_000),
}


def effort_named(name: str) -> Effort:
    """Find an effort.

    Raises:
        UsageError: there is none of this name.
    """
    if not isinstance(name, str) or name not in EFFORTS:
        raise UsageError(f"effort must be one of {', '.join(EFFORTS)}, not {name!r}")
    return EFFORTS[name]
