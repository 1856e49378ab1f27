"""The float32 precision while products are made: rounded on a GPU alone, and only where a search asks for it."""

from normscope.curvature.autograd import precision
from normscope.curvature.autograd.patching import differentiable_kernels
from normscope.curvature.autograd.precision import is_rounded, rounded


def test_products_are_exact_unless_rounded_ones_are_asked_for():
    assert not is_rounded()
    with rounded():
        assert is_rounded()
    assert not is_rounded()


def test_only_a_gpu_rounds():
    with rounded(), differentiable_kernels("cpu"):
        assert precision._get("mkldnn", "conv") == "ieee"
