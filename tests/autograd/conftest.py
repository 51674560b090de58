"""What do all tests of the split backward need?"""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(num_threads)
