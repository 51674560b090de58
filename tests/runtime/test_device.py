"""On which device does a rank compute, and what becomes of the memory that it frees?"""

import subprocess
import sys

import pytest

_FAULTS = """
import resource, torch
from zerobubble.runtime.device import keep_freed_memory
if {keeps}:
    keep_freed_memory()
for number in range(12):
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 10 * 64 * 2**20 // 4096


def _faults(keeps: bool) -> int:
    """Count the page faults of ten tensors of 64 MiB after two others of this size."""
    code = [sys.executable, "-c", _FAULTS.format(keeps=keeps)]
    return int(subprocess.run(code, capture_output=True, text=True, timeout=60, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_taken_again_without_page_faults():
    assert _faults(keeps=True) < _PAGES / 4 < _faults(keeps=False)
