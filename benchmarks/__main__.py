"""What do all benchmarks say? Run them one after the other."""

from benchmarks import host_overhead, split_backward, step_time

if __name__ == "__main__":
    for benchmark in (split_backward, step_time, host_overhead):
        benchmark.main()
