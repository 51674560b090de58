"""Where do O, L and R go in an order of F, B and W?"""

from zerobubble.copies.placing import with_copies, with_least_memory
from zerobubble.copies.ratio import copy_to_compute_ratio, offload_to_compute_ratio
from zerobubble.copies.recompute import with_recompute, without_copies

__all__ = [
    "copy_to_compute_ratio",
    "offload_to_compute_ratio",
    "with_copies",
    "with_least_memory",
    "with_recompute",
    "without_copies",
]
