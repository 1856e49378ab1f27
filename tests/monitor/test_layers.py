"""Layers that are not torch's plainest: what is measured of them, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from normscope.losses import half_mse
from normscope.monitor import Monitor


def _look(model: nn.Module, x: Tensor, y: Tensor, *measure: Any) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    half_mse(model(x), y).backward()
    record = Monitor(model, half_mse, every=1, measure=measure, budget=None, on_error="raise").step(x, y, optimizer)
    assert record is not None
    return record.results


class Projection(nn.Module):
    """x @ w of (N, T, C), as some transformers write their linear layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class LayerNorm2d(nn.LayerNorm):
    """Of (N, C, H, W), over the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("layer", "shape", "axis"),
    [
        (Projection(6, 5), (4, 7, 6), 2),
        (nn.Linear(6, 5), (4, 7, 6), 2),
        (nn.Conv1d(6, 5, 1), (4, 6, 7), 1),
        (nn.LayerNorm(6), (4, 7, 6), 2),
        (nn.Sequential(nn.Conv2d(3, 6, 1), LayerNorm2d(6)), (4, 3, 2, 7), 1),
    ],
    ids=["projection", "linear", "convolution", "layer-norm", "layer-norm-2d"],
)
def test_moments_are_those_of_the_channels(layer: nn.Module, shape: tuple[int, ...], axis: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(layer), 3 * torch.randn(shape)
    with torch.no_grad():
        output = model(x)
    found = _look(model, x, torch.zeros_like(output), "activations")["activations"]
    over = [i for i in range(output.ndim) if i != axis]
    assert found.variances[-1] == pytest.approx(float(output.var(over, correction=0).mean()), rel=1e-5)
    assert 0 <= found.channels[-1] < output.shape[axis]


@pytest.mark.parametrize("bias", [True, False])
def test_a_parametrized_layer_is_one_layer_and_its_matrix_the_weight(bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(6, 5, bias=bias)), nn.Tanh(), weight_norm(nn.Linear(5, 3, bias=bias)))
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    found = _look(model, x, y, "activations", "shift", "health")
    assert found["activations"].layers == found["shift"].layers == found["health"].depth == ("0", "2")
    with torch.no_grad():
        assert found["activations"].means[0] == pytest.approx(float(model[0](x).mean()), rel=1e-4)
    directions = [dict(model.named_parameters())[f"{i}.parametrizations.weight.original1"] for i in (0, 2)]
    assert found["shift"].grad_norms == pytest.approx([float(p.grad.norm()) for p in directions], rel=1e-4)  # type: ignore[union-attr]


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.complex128) @ self.weight


class Modulus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.real.square() + x.imag.square()


def test_complex_parameters_are_pairs_of_real_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Spectral(), Modulus(), nn.Linear(3, 3, dtype=torch.float64))
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    found = _look(model, x, y, "landscape", "shift", "health", "activations", "critical")
    grads = [torch.view_as_real(p.grad) if p.is_complex() else p.grad for p in model.parameters()]  # type: ignore[arg-type]
    size = math.sqrt(sum(float(g.square().sum()) for g in grads))  # type: ignore[union-attr]
    assert found["landscape"].grad_norm == pytest.approx(size, rel=1e-12)
    assert found["shift"].grad_norms[0] == pytest.approx(float(grads[0].norm()), rel=1e-12)  # type: ignore[union-attr]
    output = model[0](x).detach().requires_grad_()
    (at_output,) = torch.autograd.grad(half_mse(model[1:](output), y), output)
    assert found["health"].grad_norms[0] == pytest.approx(float(at_output.norm()), rel=1e-12)
    assert found["activations"].layers == ("2",)


class Late(nn.Module):
    """Leaves a layer out at first, as schedules of depth do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.whole = nn.Linear(6, 6), nn.Linear(6, 3), False

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) if self.whole else x)  # type: ignore[no-any-return]


def test_a_layer_that_joins_later_drifts_from_its_own_first_look() -> None:
    torch.manual_seed(0)
    model, x, y = Late(), torch.randn(8, 6), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, half_mse, every=1, measure=["activations"], budget=None, on_error="raise")
    for _ in range(3):
        optimizer.zero_grad()
        half_mse(model(x), y).backward()
        monitor.step(x, y, optimizer)
        optimizer.step()
        model.whole = True
    drifts = monitor.frame().mean_drift
    assert drifts[0] == 0.0
    assert drifts[1] > 0
    assert drifts[2] > 0


class ScaleNorm(nn.Module):
    """A normalizer written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


class OwnNorm(ScaleNorm, nn.LayerNorm):
    """The same, derived from a normalizer of torch."""

    def __init__(self) -> None:
        nn.LayerNorm.__init__(self, 8)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (ScaleNorm(), "The health of 1 (ScaleNorm) is not measured"),
        (nn.Tanh(), "No normalizer was found"),
        (OwnNorm(), ""),
        (nn.LayerNorm(8), ""),
    ],
)
def test_health_names_a_normalizer_that_it_does_not_read(layer, said):
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2))
    monitor = Monitor(model, nn.CrossEntropyLoss(), every=1, measure=["health"], budget=None, on_error="raise")
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    nn.functional.cross_entropy(model(x), y).backward()
    row = monitor.step(x, y, lr=0.1).results["health"]
    assert [note for note in monitor.notes if said and said in note] == list(monitor.notes)
    assert bool(said) == (row.layers == ())
    assert bool(said) == any("class MyNorm(nn.LayerNorm)" in note for note in monitor.notes)
