"""What do all benchmarks say? Run them one after the other."""

import os

from benchmarks import host_overhead, split_backward, step_time

if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, load average before the run {os.getloadavg()[0]:.1f}\n")
    for benchmark in (split_backward, step_time, host_overhead):
        benchmark.main()
