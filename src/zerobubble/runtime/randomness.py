"""Which random numbers does F draw? Those of its seed, step, stage and microbatch, and no others.

So dropout depends neither on the schedule nor on the number of ranks. Activation checkpointing
saves the state of the generators within F and draws the same numbers again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b

import torch


class Randomness:
    """Seeds the generators of the CPU and of this rank's device before every F of a step.

    Args:
        seed: of the run.
        device: whose generator is seeded beside that of the CPU.

    >>> drawn = []
    >>> for microbatch in (0, 1, 0):
    ...     randomness = Randomness(seed=7, device=torch.device("cpu"))
    ...     with randomness.of_step(1):
    ...         randomness.seed_forward(stage=2, microbatch=microbatch)
    ...         drawn.append(float(torch.rand(())))
    >>> drawn[0] == drawn[2] != drawn[1]
    True
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[index])
        self._number_of_step: int | None = None

    @contextmanager
    def of_step(self, step: int) -> Iterator[None]:
        """Seed the forwards within the block, and put the user's generators back after it."""
        states = [generator.get_state() for generator in self._generators]
        self._number_of_step = _mix("step", self._seed, step)
        try:
            yield
        finally:
            self._number_of_step = None
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)

    def seed_forward(self, stage: int, microbatch: int) -> None:
        """Begin an F; outside of training steps, random numbers are the user's own."""
        if self._number_of_step is None:
            return
        number = self._number_of_step ^ _of_forward(stage, microbatch)
        for generator in self._generators:
            generator.manual_seed(number)


@cache
def _of_forward(stage: int, microbatch: int) -> int:
    return _mix("forward", stage, microbatch)


def _mix(*parts: object) -> int:
    """Condense some values into 63 bits."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1
