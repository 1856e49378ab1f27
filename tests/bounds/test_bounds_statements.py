"""Where a verdict could be wrong: rounding in either direction, narrow formats, layers that only look like a pair."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import normscope as ns
from normscope.bounds import check, check_network, pairs
from normscope.bounds.result import row
from normscope.theory import inequalities as theory


def _layer(d_in=6, d_out=2, m=12):
    torch.manual_seed(0)
    return nn.Linear(d_in, d_out), nn.BatchNorm1d(d_out), torch.randn(m, d_in)


def _cubic(z):
    return z.pow(3).sum()


def _rows(found, statement):
    return [row for row in found.rows if row.statement.startswith(statement)]


def test_58_is_judged_by_its_own_terms():
    """The curvature without BatchNorm is 1e12 of that with it, and no measure for what (58) says."""
    found = check(*_layer(), lambda z: 1e4 * z.square().sum() + _cubic(z), units=[0])
    (said,) = _rows(found, "Theorem C.1, (58)")
    assert said.left > 5 * said.right > 0
    assert not said.holds
    assert found.holds


@pytest.mark.parametrize(
    "name", ["gradient", "jacobian", "squared_gradient", "hessian", "separation", "largest_weight_gradient"]
)
def test_a_right_side_off_by_a_millionth_is_seen(monkeypatch, name):
    right = getattr(theory, name)
    monkeypatch.setattr(theory, name, lambda *args, **more: (1 + 1e-6) * right(*args, **more))
    assert not check(*_layer(), _cubic).holds


def test_a_row_keeps_its_relation_where_its_condition_is_not_met():
    assert not row("S", "both", 0, "=", 1.0, 1.0 + 1e-7, applies=False).holds
    assert row("S", "both", 0, "=", 1.0, 1.0 + 1e-11).holds
    linear, norm, x = _layer()
    found = check(linear, norm, x, lambda z: -z.square().sum() + 0.1 * _cubic(z), w0=-linear.weight)
    silent = [row for row in found.rows if row.form == "corrected" and not row.applies]
    assert silent
    assert found.holds


@pytest.mark.parametrize("gamma", [1.0, -2.5])
def test_two_samples(gamma):
    """P = 0: all that is left is rounding."""
    linear, norm, x = _layer(m=2)
    nn.init.constant_(norm.weight, gamma)
    for loss in (_cubic, lambda z: z.sum(), lambda z: z.tanh().square().sum()):
        found = check(linear, norm, x, loss)
        assert found.holds, str(found)


@pytest.mark.parametrize(
    ("move", "scale", "bias"), [(1e8, 1.0, None), (0.0, 1e-8, 1.0), (0.0, 1.0, 1e6), (1e8, 1.0, 1e6)]
)
def test_large_means_cost_no_digits(move, scale, bias):
    linear, norm, x = _layer()
    if bias is not None:
        nn.init.constant_(linear.bias, bias)
    found = check(linear, norm, scale * x.double() + move, _cubic, w0=0.7 * linear.weight + 0.1)
    assert found.holds, str(found)


@pytest.mark.parametrize("k", [0.7, 1e-9, 1e9])
def test_the_loss_of_lemma_4_5_may_cancel(k):
    linear, norm, x = _layer()
    found = check(linear, norm, x, lambda z: z.sum(), w0=k * (linear.weight + 0.1 * torch.randn(2, 6)))
    assert _rows(found, "Lemma 4.5, loss")
    assert found.holds, str(found)


@pytest.mark.parametrize("scale", [1e-160, 1e100])
def test_losses_out_of_range_are_refused(scale):
    with pytest.raises(ValueError, match="leave float64. Scale the loss or the inputs"):
        check(*_layer(), lambda z: scale * _cubic(z))
    assert check(*_layer(), lambda z: 1e-20 * _cubic(z)).holds
    assert check(*_layer(), lambda z: 1e20 * _cubic(z)).holds


class _Narrow(nn.Module):
    def __init__(self, early):
        super().__init__()
        self.a, self.n, self.o = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.early = early

    def forward(self, x):
        if self.early:
            return self.o(self.n(self.a(x.float().to(x))).relu())
        return self.o(self.n(self.a(x)).relu()).float()


def test_narrow_formats_are_refused_where_they_count():
    with pytest.raises(ValueError, match="goes through float32 on the way from z to the loss"):
        check(*_layer(), lambda z: z.float().pow(3).sum())
    with pytest.raises(ValueError, match="goes through float32 on the way"):
        check(*_layer(), lambda z: z.float().pow(3).sum().double())
    batch = torch.randn(12, 6), torch.arange(12) % 3
    with pytest.raises(ValueError, match="goes through float32 on the way"):
        check_network(_Narrow(False), ns.losses.cross_entropy, batch)
    assert check_network(_Narrow(True), ns.losses.cross_entropy, batch)["a"].holds


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return 3 * grad * z**2


def test_a_missing_second_derivative_is_refused():
    with pytest.raises(ValueError, match="second derivative is not available"):
        check(*_layer(), lambda z: _Once.apply(z).sum())
    with pytest.raises(ValueError, match="second derivative is not available"):
        check(*_layer(), lambda z: _Once.apply(z).sum() + z.square().sum())


def test_kinks_are_no_missing_derivative():
    linear, norm, x = _layer()
    nn.init.zeros_(norm.weight)  # z = 0, on the kink
    for loss in (lambda z: z.relu().square().sum() + z.abs().sum(), lambda z: F.max_pool1d(z[None], 2).sum()):
        assert check(linear, norm, x, loss).holds


class _Doubled(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x)


class _Spoken(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x)


def test_a_norm_is_known_by_what_it_does():
    linear, _, x = _layer()
    with pytest.raises(ValueError, match="this _Doubled gives something else"):
        check(linear, _Doubled(2), x, _cubic)
    assert check(linear, _Spoken(2), x, _cubic).holds
    assert pairs(nn.Sequential(nn.Linear(6, 3), _Doubled(3)), x) == []
    assert pairs(nn.Sequential(nn.Linear(6, 3), _Spoken(3).eval()), x) == [("0", "1")]


class _Between(nn.Module):
    """kind: what happens between layer and norm, or what else is done with the layer."""

    def __init__(self, kind):
        super().__init__()
        self.a, self.n, self.o, self.kind = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3), kind

    def forward(self, x):
        if self.kind == "keyword":
            return self.o(self.n(input=self.a(input=x)).relu())
        h = self.a(x)
        if self.kind == "sum":
            h += x
        elif self.kind == "relu":
            h.relu_()
        z = self.n(h).relu()
        if self.kind == "skip":
            return self.o(h + z)
        if self.kind == "tied":
            return self.o(F.linear(z, self.a.weight))
        if self.kind == "detached":
            return self.o(z) + 0 * h.detach().sum()
        return self.o(z)


def test_what_happens_in_place_between_them_parts_a_pair():
    torch.manual_seed(0)
    x = torch.randn(12, 6)
    assert pairs(nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6)), x) == []
    assert pairs(_Between("sum"), x) == pairs(_Between("relu"), x) == []
    assert pairs(_Between("keyword"), x) == pairs(_Between("none"), x) == [("a", "n")]


@pytest.mark.parametrize("kind", ["skip", "tied", "detached", "none", "keyword"])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_output_that_goes_elsewhere_is_said(kind, frozen):
    torch.manual_seed(0)
    model = _Between(kind)
    model.a.requires_grad_(not frozen)
    found = check_network(model, ns.losses.cross_entropy, (torch.randn(12, 6), torch.arange(12) % 3), units=1)["a"]
    assert found.holds
    said = any("also used elsewhere" in note for note in found.notes)
    # Through a frozen weight that is used twice no gradient goes.
    assert said == (kind == "skip" or (kind == "tied" and not frozen))


@pytest.mark.slow
def test_stem_of_a_preactivation_network():
    torch.manual_seed(0)
    model = ns.models.PreActResNet18(width=4, norm="batch")
    batch = torch.randn(2, 3, 8, 8), torch.arange(2)
    found = check_network(model, ns.losses.cross_entropy, batch, units=1)
    said = [name for name, bounds in found.items() if any("also used elsewhere" in note for note in bounds.notes)]
    assert len(said) >= 1
    assert said[0] == pairs(model, batch[0])[0][0]
    assert len(said) < len(found)


def test_lam_is_that_of_the_largest_group():
    torch.manual_seed(0)
    conv, x = nn.Conv2d(4, 4, 3, groups=2, bias=False), torch.randn(3, 4, 6, 6)
    x[:, 2:] *= 10
    patches = F.unfold(x[:, 2:].double(), 3).movedim(1, 2).reshape(-1, 18)
    found = check(conv, nn.BatchNorm2d(4), x, lambda z: z.tanh().mean(), units=[0])
    assert found.lam == pytest.approx(np.linalg.norm(patches.numpy(), 2))


def test_initial_weights_by_name():
    torch.manual_seed(0)
    model, batch = _Between("none"), (torch.randn(12, 6), torch.arange(12) % 3)
    w0 = copy.deepcopy(model.a.weight.detach())
    for name in ("a", "a.weight"):
        assert _rows(check_network(model, ns.losses.cross_entropy, batch, w0={name: w0})["a"], "Lemma 4.5")
    with pytest.raises(ValueError, match=r"w0 has \['first'\], which are no layers of the model; .* are \['a'\]"):
        check_network(model, ns.losses.cross_entropy, batch, w0={"first": w0})


def test_the_generator_of_the_user_does_not_move():
    state = torch.get_rng_state()
    linear, norm, x = _layer()
    torch.set_rng_state(state)
    with pytest.raises(ValueError, match="the same loss for the same z"):
        check(linear, norm, x, lambda z: F.dropout(z, 0.5).sum())
    assert torch.equal(state, torch.get_rng_state())
