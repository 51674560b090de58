"""How is a backward pass done in two parts, B and W?

B computes the gradient of a stage's input, W the gradient of its parameters (Zero Bubble,
arXiv 2401.10241, section 2). Run a module inside :func:`deferring`, run its backward (B), and run
the :class:`WeightQueue` (W) whenever it suits: the gradients are those of a plain backward.

::

    splitting.py   B and W of one call, by hand
    intercept.py   which calls are caught while a module runs
    ops/           how each caught op is split: input gradient at B, weight gradient at W
    operands.py    which operands can be split
    function.py    the node that stands in the autograd graph
    native.py      the same node in C++, if it has been built
    light.py       which calls are cheap enough for B to compute them again
    recipe.py      how such a call leaves the graph after F and is made again in B
    patching.py    how functions are replaced while a block runs
    queue.py       what waits between B and W, and how it reaches ``.grad``
    report.py      what is left to W, and why the rest is not
    consumers.py   which ops of a graph use a parameter
    compiled.py    how code that torch.compile has made does the same
    address.py     how such code finds its weight and its queue
"""

from zerobubble.autograd.data_parallel import gradient_sync_at_end
from zerobubble.autograd.intercept import current_queue, deferring, ready_to_defer
from zerobubble.autograd.light import ready_to_recompute_light, recomputing_light
from zerobubble.autograd.native import build_native
from zerobubble.autograd.queue import WeightQueue
from zerobubble.autograd.report import SplitReport, split_report
from zerobubble.autograd.splitting import SplitCall, splitting

__all__ = [
    "SplitCall",
    "SplitReport",
    "WeightQueue",
    "build_native",
    "current_queue",
    "deferring",
    "gradient_sync_at_end",
    "ready_to_defer",
    "ready_to_recompute_light",
    "recomputing_light",
    "split_report",
    "splitting",
]
