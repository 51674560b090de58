"""Does every F draw numbers of its own, and the user's generators none?"""

from itertools import product

import torch

from zerobubble.runtime.randomness import Randomness

CPU = torch.device("cpu")


def drawn(seed, step, stage, microbatch):
    randomness = Randomness(seed, CPU)
    with randomness.of_step(step):
        torch.rand(3)
        randomness.seed_forward(stage, microbatch)
        return float(torch.rand((), dtype=torch.float64))


def test_numbers_differ_by_seed_step_stage_and_microbatch_and_repeat():
    cases = list(product((0, 1, 2**64 - 1), (1, 2), (0, 1), (0, 1)))
    numbers = [drawn(*case) for case in cases]
    assert len(set(numbers)) == len(cases)
    assert [drawn(*case) for case in cases] == numbers


def test_outside_of_a_step_and_after_it_numbers_are_the_users():
    randomness = Randomness(0, CPU)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    randomness.seed_forward(0, 0)
    first = torch.rand(1)
    with randomness.of_step(1):
        randomness.seed_forward(0, 0)
        torch.rand(5)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
