"""How fast is it? Ratios measured in one run, with alternating repetitions.

``python -m benchmarks`` prints all of them but ``scale``, which takes gigabytes; every file also
runs alone, as in ``python -m benchmarks.split_backward``.

::

    timing.py          alternating repetitions, medians, and the table
    processes.py       a function on several ranks
    split_backward.py  F + B + W against a plain forward and backward
    step_time.py       the step of zb-h1 and gpipe against 1f1b
    host_overhead.py   host time of an op, a step and a split linear when nothing is computed
    scale.py           seconds and memory of verify and simulate up to 25 million ops
"""
