"""What do the benchmarks say? Run those of training one after the other, or the one named."""

import os
import sys
from importlib import import_module

import tyro

from benchmarks import host_overhead, pipelining, split_cost, step_time

if __name__ == "__main__":
    if len(sys.argv) > 1:
        name = sys.argv[1]
        tyro.cli(import_module(f"benchmarks.{name}").main, prog=name, args=sys.argv[2:])
    else:
        print(f"{os.cpu_count()} cores, load average before the run {os.getloadavg()[0]:.1f}\n")
        for benchmark in (split_cost, step_time, pipelining, host_overhead):
            benchmark.main()
