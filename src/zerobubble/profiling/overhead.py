"""What does a step take besides its ops, its messages and the optimizer?"""

from statistics import median
from time import perf_counter

import torch
from torch import nn

from zerobubble.profile import Link
from zerobubble.runtime.pipeline import Pipeline
from zerobubble.schedules import build

_NUM_STEPS = 30
_NUM_WARM_UP = 5


def measure_overhead(device: torch.device, num_ranks: int, validate: str, link: Link) -> float:
    """Time steps of one microbatch through layers of one number, in ms; the links are taken off.

    What remains is the work of the hosts: they agree on the batch, the norm and the loss.
    """
    layers = [nn.Linear(1, 1, bias=False) for _ in range(num_ranks)]
    pipe = Pipeline(layers, build("zb-h1", num_ranks, 1), nn.functional.mse_loss, device=device)
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.0, max_grad_norm=1e9, validate=validate)
    x, times = torch.ones(1, 1), []
    for _ in range(_NUM_WARM_UP + _NUM_STEPS):
        begin = perf_counter()
        pipe.step(x, x)
        optimizer.step()
        times.append((perf_counter() - begin) * 1e3)
    optimizer.synchronize()
    own = median(times[_NUM_WARM_UP:])
    slowest: float = max(pipe.transport.share_object(own))
    return max(0.0, slowest - 2 * (num_ranks - 1) * link.transfer_ms(4))
