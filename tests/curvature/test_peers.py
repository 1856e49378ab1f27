"""Agreement with other libraries where they work: running statistics, or no BatchNorm."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from twins import data, dense, network, opened

from normscope.curvature import Solver, measure

WHY = "compared with in tests only; `make test` installs it"
NETS = [("mlp", "none"), ("cnn", "none"), ("deep", "torch"), ("cnn", "torch"), ("mlp", "rms"), ("cnn", "batch")]
LOSSES = {"mse": nn.MSELoss(), "cross_entropy": nn.CrossEntropyLoss()}


def _case(net: str, norm: str, loss: str) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A model in eval mode for the peer, its batch, and (GGN, Hessian) as this package sees them in running mode."""
    model = network(net, norm)
    x, y, labels = data(net)
    batch = (x, labels if loss == "cross_entropy" else y)
    with opened(model, LOSSES[loss], batch, "running") as found:
        ours = tuple(dense(product(), found.size) for product in (found.gauss_newton, found.hessian))
    return copy.deepcopy(model).eval(), batch, ours


def _assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-10 * ours.abs().max()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("net", "norm"), NETS)
def test_curvlinops(net, norm, loss):
    peer = pytest.importorskip("curvlinops", reason=WHY, exc_type=ImportError)
    model, batch, (ggn, hessian) = _case(net, norm, loss)
    unit = torch.eye(len(ggn), dtype=torch.float64)
    for kind, ours in ((peer.GGNLinearOperator, ggn), (peer.HessianLinearOperator, hessian)):
        operator = kind(model, LOSSES[loss], list(model.parameters()), [batch], check_deterministic=False)
        _assert_same(ours, operator @ unit)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("net", "norm"), NETS)
def test_hessian_eigenthings(net, norm, loss):
    peer = pytest.importorskip("hessian_eigenthings", reason=WHY, exc_type=ImportError)
    model, batch, (ggn, hessian) = _case(net, norm, loss)
    criterion = LOSSES[loss]
    theirs = {
        "ggn": peer.GGNOperator(model, [batch], peer.supervised_forward, peer.supervised_loss_of_output(criterion)),
        "hessian": peer.HessianOperator(model, [batch], peer.supervised_loss(criterion)),
    }
    for matrix, ours in (("ggn", ggn), ("hessian", hessian)):
        _assert_same(ours, dense(theirs[matrix].matvec, len(ours)))
        found = measure(model, criterion, batch, matrix=matrix, stats="running", solver=Solver(tol=1e-9))
        largest = peer.lanczos(theirs[matrix], k=1, max_iter=len(ours), which="LA", tol=1e-9, seed=0)
        assert found.lambda_max == pytest.approx(float(largest.eigenvalues[0]), rel=1e-6)


def test_functional_losses_are_the_modules():
    model, (x, _, labels) = network("mlp", "torch"), data("mlp")
    one, other = (measure(model, loss, (x, labels)) for loss in (F.cross_entropy, nn.CrossEntropyLoss()))
    assert one.lambda_max == other.lambda_max
