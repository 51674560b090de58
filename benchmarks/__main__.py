"""What do the benchmarks say? Run those of training one after the other, or the one named."""

import os
import sys
from importlib import import_module
from pathlib import Path

import tyro

from benchmarks import host_overhead, pipelining, split_cost, step_time


def _has_main(path: Path) -> bool:
    return "\ndef main(" in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py") if _has_main(path))
    if len(sys.argv) > 1 and sys.argv[1] not in names:
        print(f"usage: python -m benchmarks [NAME [FLAGS]]\nnames: {', '.join(names)}")
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    if len(sys.argv) > 1:
        name = sys.argv[1]
        tyro.cli(import_module(f"benchmarks.{name}").main, prog=name, args=sys.argv[2:])
    else:
        print(f"{os.cpu_count()} cores, load average before the run {os.getloadavg()[0]:.1f}\n")
        for benchmark in (split_cost, step_time, pipelining, host_overhead):
            benchmark.main()
