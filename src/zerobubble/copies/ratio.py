"""Are copies hidden by the compute of what they move?"""

import numpy as np

from zerobubble.costs import Costs
from zerobubble.errors import UsageError


def offload_to_compute_ratio(
    hidden_size: int, sequence_length: int, flop_per_s: float, bytes_per_s: float
) -> float:
    """Give k, the time of a layer's copies to the host and back over that of its compute.

    A layer of a transformer in 16 bits, whose light ops are run again: up to k = 1 all of its
    activations can be offloaded at no cost (arXiv 2503.01328, section 2).

    Args:
        hidden_size: of the layer.
        sequence_length: tokens of a sample.
        flop_per_s: speed of the compute.
        bytes_per_s: speed of the copies of one direction.

    Raises:
        UsageError: a number is not positive.

    >>> round(offload_to_compute_ratio(8192, 16384, flop_per_s=220e12, bytes_per_s=15e9), 2)
    0.75
    """
    given: tuple[object, ...] = (hidden_size, sequence_length, flop_per_s, bytes_per_s)
    for value in given:
        if not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
            raise UsageError(f"sizes and speeds must be positive numbers, not {value!r}")
    return 10 / (3 * (6 * hidden_size + sequence_length)) * flop_per_s / bytes_per_s


def copy_to_compute_ratio(costs: Costs) -> float:
    """Give k of the stage where it is largest: the time of O and L over that of F, B and W.

    Up to k = 1 what every microbatch of every stage holds can leave and come back beside the
    compute of the rank; infinite where copies take time and the compute takes none.

    >>> copy_to_compute_ratio(Costs.uniform(2, f=1, b=2, w=1).with_bandwidth(1))
    0.5
    """
    compute = costs.forward + costs.backward_input + costs.backward_weight
    copies = costs.offload + costs.load
    unhidden = np.where(copies > 0, np.inf, 0.0)
    return float(np.divide(copies, compute, out=unhidden, where=compute > 0).max())
