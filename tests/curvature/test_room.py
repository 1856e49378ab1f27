"""Memory between products: pages are mapped once, not for each of them."""

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

torch.set_num_threads(1)
product()
without = faults(product)
with room(torch.device("cpu")):
    product()
    within = faults(product)
print(without, within)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Another C library keeps memory in another way.")
def test_pages_stay_between_products():
    found = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, check=True)
    without, within = map(int, found.stdout.split())
    pages = 12 * (5 << 20) // 4096
    assert without > 0.5 * pages
    # A tensor of the twelve may lie elsewhere.
    assert within < 0.2 * pages
