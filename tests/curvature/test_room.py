"""Memory between products: pages are mapped once, not for each of them, and given back at the end."""

import platform
import subprocess
import sys

import pytest

# In a process of its own: whether the heap's end is given back hangs on what else lies there.
_COUNTED = """
import resource
import torch
from normscope.curvature.room import room

def faults(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def product():
    parts = [torch.ones(5 << 18) for _ in range(12)]

def resident():
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
product()
without = faults(product)
before = resident()
with room(torch.device("cpu")):
    product()
    within = faults(product)
print(without, within, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Another C library keeps memory in another way.")
def test_pages_stay_between_products_and_leave_after_them():
    found = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, check=True)
    without, within, left = map(int, found.stdout.split())
    pages = 12 * (5 << 20) // 4096
    assert without > 0.5 * pages
    assert within < 0.05 * pages
    assert left < 0.1 * pages
