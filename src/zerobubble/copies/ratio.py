"""Are the copies of a transformer layer hidden by its compute?"""

import math

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
    for value in (hidden_size, sequence_length, flop_per_s, bytes_per_s):
        if not 0 < value < math.inf:
            raise UsageError(f"sizes and speeds must be positive, not {value}")
    return 10 / (3 * (6 * hidden_size + sequence_length)) * flop_per_s / bytes_per_s
