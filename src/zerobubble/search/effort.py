"""How much does a search try?"""

from dataclasses import dataclass, fields, replace

from zerobubble.errors import UsageError
from zerobubble.search.placements import PLACEMENTS


@dataclass(frozen=True)
class Effort:
    """How much is tried, in ops placed, so that a larger problem gets fewer tries.

    Attributes:
        seeded: by the rules to start from, at each size.
        climbed: by climbing over templates at each size.
        num_climbs: how many climbs share them at the smallest size; half as many at each larger.
        shaped: by climbing over what the best templates lead to, stage by stage; for each of the
            usual placements if all are searched, else for those that are, all together.
        justified: by climbs over what justification makes of either, where ranks have three stages
            or more; twice as many at each larger size. Two rules are justified at any effort.
        moves: no ops placed, but how often ops of the best orders are moved; a quarter of it on
            smaller copies of the problem.
        patterns: no ops placed, but what a solver may spend on each period for which it looks for a
            pattern, about in seconds.
    """

    seeded: int
    climbed: int
    num_climbs: int
    shaped: int
    justified: int
    moves: int
    patterns: int

    def shared_by(self, num_placements: int) -> "Effort":
        """Give fewer placements than usual what the others would have got."""
        return replace(self, shaped=self.shaped * len(PLACEMENTS) // num_placements)

    def divided(self, number: int) -> "Effort":
        """Give one of so many equal parts."""
        parts = {each.name: getattr(self, each.name) // number for each in fields(self)}
        return Effort(**parts | {"num_climbs": self.num_climbs})


EFFORTS = {
    "quick": Effort(120_000, 0, 0, 0, 0, 0, 0),
    "default": Effort(800_000, 9_000_000, 5, 6_000_000, 10_000_000, 40_000, 0),
    "thorough": Effort(3_000_000, 100_000_000, 20, 50_000_000, 60_000_000, 1_000_000, 20),
}


def effort_named(name: str) -> Effort:
    """Find an effort.

    Raises:
        UsageError: there is none of this name.
    """
    if not isinstance(name, str) or name not in EFFORTS:
        raise UsageError(f"effort must be one of {', '.join(EFFORTS)}, not {name!r}")
    return EFFORTS[name]
