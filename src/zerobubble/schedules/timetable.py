"""In which slot does each op of a schedule start? Slots are of equal length.

F, B and W take one slot, BW takes two. Memory is counted in stage activations, from the start of
F to the end of W or BW. Ops are named by their codes, as in ``Schedule``.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from zerobubble.graph import producers
from zerobubble.ir import Codes, Kind, Op, Placement, Schedule

LENGTHS = {Kind.F: 1, Kind.B: 1, Kind.W: 1, Kind.BW: 2}


class Timetable:
    """The start slot of every op, to be changed op by op and read as a schedule.

    The W of every B takes the first free slot after it, unless its slot is given.

    Args:
        name: of the schedule.
        placement: which rank holds which stage.
        num_microbatches: of the schedule.
        slots: the start slots of all F, of all B or BW, and of any W.
    """

    def __init__(
        self, name: str, placement: Placement, num_microbatches: int, slots: Mapping[Op, int]
    ) -> None:
        self.ranks = range(placement.num_ranks)
        ops: list[list[Op]] = [[] for _ in self.ranks]
        for op in slots:
            ops[placement.stage_to_rank[op.stage]].append(op)
        self._schedule = Schedule.from_ops(name, placement, num_microbatches, ops)
        self._codes_of_kind = placement.num_stages * num_microbatches
        self._needs = producers(self._schedule).tolist()
        self._start = [-1] * self._schedule.num_codes
        self._codes: list[list[int]] = [[] for _ in self.ranks]
        self._busy: list[set[int]] = [set() for _ in self.ranks]
        for op, slot in slots.items():
            self._put(placement.stage_to_rank[op.stage], self._schedule.code(op), slot)
        for rank in self.ranks:
            inputs = [code for code in self._codes[rank] if self.kind(code) == Kind.B]
            weights = [code + self._codes_of_kind for code in inputs]
            self.fill(rank, [code for code in weights if self._start[code] < 0])

    def kind(self, code: int) -> int:
        """Give the kind of an op."""
        return code // self._codes_of_kind

    def start(self, code: int) -> int:
        """Give the first slot of an op."""
        return self._start[code]

    def end(self, code: int) -> int:
        """Give the slot after an op."""
        return self._start[code] + (2 if self.kind(code) == Kind.BW else 1)

    def in_order(self) -> list[tuple[int, int]]:
        """List rank and code of all ops by start slot."""
        every = [(self._start[c], c, rank) for rank in self.ranks for c in self._codes[rank]]
        return [(rank, code) for _, code, rank in sorted(every)]

    def ready(self, code: int) -> int:
        """Give the slot after the op whose output an op needs."""
        need = self._needs[code]
        return self.end(need) if need >= 0 else 0

    def earliest(self, code: int) -> int:
        """Give the first slot after the input of an op and after the microbatch before it."""
        is_first = code % self._schedule.num_microbatches == 0
        return self.ready(code) if is_first else max(self.ready(code), self.end(code - 1))

    def move(self, rank: int, code: int, earliest: int) -> None:
        """Move an op to the first slot from ``earliest`` on where it finds room, but never back."""
        busy, length = self._busy[rank], self.end(code) - self._start[code]
        busy.difference_update(range(self._start[code], self.end(code)))
        for slot in range(earliest, self._start[code]):
            if busy.isdisjoint(range(slot, slot + length)):
                self._start[code] = slot
                break
        busy.update(range(self._start[code], self.end(code)))

    def squeeze(self) -> None:
        """Drop idle slots: every op starts as early as its input and its rank's order allow."""
        free = [0 for _ in self.ranks]
        for rank, code in self.in_order():
            self._start[code] = max(free[rank], self.ready(code))
            free[rank] = self.end(code)
        for rank, codes in enumerate(self._codes):
            taken = (range(self._start[code], self.end(code)) for code in codes)
            self._busy[rank] = {slot for slots in taken for slot in slots}

    def take_out(self, rank: int, codes: Iterable[int]) -> None:
        """Free the slots of some ops of a rank, until they are filled in again."""
        taken = set(codes)
        self._busy[rank] -= {self._start[code] for code in taken}
        self._codes[rank] = [code for code in self._codes[rank] if code not in taken]

    def fill(self, rank: int, weights: Iterable[int]) -> None:
        """Put every W into the first free slot after its B and after the W before it."""
        slot = 0
        for code in sorted(weights, key=self.ready):
            slot = max(slot, self.ready(code))
            while slot in self._busy[rank]:
                slot += 1
            self._put(rank, code, slot)

    def memory(self, rank: int) -> Codes:
        """Count the activations that a rank holds in every slot."""
        changes = np.zeros(max(map(self.end, self._codes[rank])) + 1, dtype=np.int64)
        for code in self._codes[rank]:
            if self.kind(code) == Kind.F:
                changes[self._start[code]] += 1
            elif self.kind(code) != Kind.B:
                changes[self.end(code)] -= 1
        return np.cumsum(changes)

    def first_turn(self) -> int | None:
        """Give the slot of the first B of the first stage; None where the backward is fused."""
        slot = self._start[self._schedule.code(Op(Kind.B, 0, 0))]
        return None if slot < 0 else slot

    def last_forward(self, rank: int) -> int:
        """Give the slot of the last F of a rank."""
        return max(self._start[code] for code in self._codes[rank] if self.kind(code) == Kind.F)

    def schedule(self) -> Schedule:
        """Give the ops of every rank in the order of their slots."""
        old = self._schedule
        ops = [map(old.op, sorted(codes, key=self.start)) for codes in self._codes]
        return Schedule.from_ops(old.name, old.placement, old.num_microbatches, ops)

    def _put(self, rank: int, code: int, slot: int) -> None:
        self._start[code] = slot
        self._codes[rank].append(code)
        self._busy[rank].update(range(slot, self.end(code)))
