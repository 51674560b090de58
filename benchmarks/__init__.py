"""How fast is it? Ratios measured in one run, with alternating repetitions.

``python -m benchmarks`` prints what training takes; ``python -m benchmarks search`` runs one file,
whose options ``--help`` tells.

::

    timing.py          alternating repetitions, medians, and the table
    processes.py       a function on several ranks
    split_cost.py      F + B + W against a plain forward and backward, eager and compiled
    split_models.py    the models for that
    step_time.py       the step of zb-h1 and gpipe against 1f1b
    pipelining.py      real compute: zb-h2 and 1f1b against torch.distributed.pipelining
    torch_pipelining.py  the other side of such comparisons
    host_overhead.py   host time of an op and a step when nothing is computed
    scale.py           seconds and memory of verify and simulate up to 25 million ops
    search.py          seconds, memory and gap of the search up to 50 million ops
    safety.py          random instances: does the search ever break a rule or a limit?
    instances.py       the random instances
    exactness.py       small instances: does the search find the optimum that a solver proves?
    exact.py           the model for the solver
    offload.py         memory with offload, counted and simulated, and what a step takes
    page.py            seconds to open the page, and frames while it pans
    screenshots.py     the pictures of docs/view.md
"""
