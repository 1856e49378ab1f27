"""A machine without a C++ compiler runs everything, eager, and says so."""

import os
import subprocess
import sys

import pytest
import torch

from normscope.compiling import compile_or_eager, why_not_compiled

WITHOUT_COMPILER = """
import warnings, torch
from normscope.compiling import compile_or_eager, why_not_compiled
from normscope.norms import LpNorm2d
layer = LpNorm2d(3, p=1)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    run = compile_or_eager(layer)
assert run is layer, "not the eager layer"
assert "runs eager instead" in str(said[-1].message), said
assert why_not_compiled()
print(run(torch.randn(2, 3, 4, 4)).shape)
"""


@pytest.mark.slow
def test_without_a_compiler_it_is_eager_and_says_so(tmp_path):
    env = os.environ | {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], env=env, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert "torch.Size([2, 3, 4, 4])" in found.stdout


def test_with_one_it_compiles():
    if why_not_compiled():
        pytest.skip(why_not_compiled())
    double = compile_or_eager(lambda x: 2 * x)
    assert hasattr(double, "_torchdynamo_orig_callable")
    assert double(torch.tensor([1.5])).item() == 3.0
