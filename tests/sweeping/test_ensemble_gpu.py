"""On a GPU: networks with convolutions, GroupNorm and dropout train as stacks and equal networks trained alone."""

import pytest
import sweep_on_gpu
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", sweep_on_gpu.CASES)
def test_members_on_a_gpu(name):
    sweep_on_gpu.members_against_alone(name)


@pytest.mark.parametrize("name", sweep_on_gpu.COMPILED)
def test_compiled_members_on_a_gpu(name):
    sweep_on_gpu.compiled_against_eager(name)


def test_a_full_gpu_halves_the_group():
    sweep_on_gpu.with_little_memory()
