"""The table of matrices: what is measured follows from one entry."""

import pytest
import torch
from torch import nn

from normscope import losses, measure
from normscope.curvature.operators.loss_of_outputs import OutputCurvature
from normscope.curvature.operators.matrices import MATRICES, Matrix

X = torch.tensor([[1.0], [3.0]], dtype=torch.float64)


def test_a_matrix_is_one_entry(monkeypatch):
    """With B the identity J^T B J is the sum of x^2 = 10, whatever the loss."""
    identity = Matrix("sum of squares", lambda network, outputs, read: OutputCurvature(lambda t, v: (t, None)))
    monkeypatch.setitem(MATRICES, "squares", identity)
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    found = measure(layer, losses.half_mse, (X, X), matrix="squares")
    assert found.lambda_max == pytest.approx(10.0, rel=1e-6)
    assert "sum of squares" in str(found)
    with pytest.raises(ValueError, match="nothing to sample"):
        measure(layer, losses.half_mse, (X, X), matrix="squares", label_draws=3)
