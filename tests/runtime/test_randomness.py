"""Does every F draw numbers of its own, and the user's generators none?"""

from itertools import product

import pytest
import torch

from zerobubble.runtime.randomness import Randomness

_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _NO_GPU])])
def device(request):
    return torch.device(request.param)


def draw(device):
    return float(torch.rand((), dtype=torch.float64, device=device))


def drawn(device, seed, step, stage, microbatch):
    randomness = Randomness(seed, device)
    with randomness.of_step(step):
        draw(device)
        randomness.seed_forward(stage, microbatch)
        return draw(device)


def test_numbers_differ_by_seed_step_stage_and_microbatch_and_repeat(device):
    cases = list(product((0, 1, 2**64 - 1), (1, 2), (0, 1), (0, 1)))
    numbers = [drawn(device, *case) for case in cases]
    assert len(set(numbers)) == len(cases)
    assert [drawn(device, *case) for case in cases] == numbers


def test_outside_of_a_step_and_after_it_numbers_are_the_users(device):
    randomness = Randomness(0, device)
    torch.manual_seed(3)
    expected = [draw(device), draw(device)]
    torch.manual_seed(3)
    randomness.seed_forward(0, 0)
    first = draw(device)
    with randomness.of_step(1):
        randomness.seed_forward(0, 0)
        draw(device)
    assert [first, draw(device)] == expected
