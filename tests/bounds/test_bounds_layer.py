"""`bounds.check` on layers of every kind: what is corrected holds, nothing of the user moves, bad input is named."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normscope as ns
from normscope.bounds import check

STATEMENTS = {
    "Fact C.1",
    "Fact C.2",
    "Observation 4.3",
    "Theorem 4.1",
    "Theorem 4.2, part 1",
    "Theorem 4.2, part 2",
    "Theorem 4.4",
    "Theorem 4.4, these inputs",
    "Theorem C.1, (54) and (56)",
    "Theorem C.1, (58), lam = 1",
    "Theorem C.1, lam = 1",
    "Hessian (41), (42)",
}
LOSSES = {
    "cubic": lambda z: (z.pow(3) + z[:1] * z).sum(),
    "softplus": lambda z: nn.functional.softplus(z.sum(1)).mean(),
    "cross entropy": lambda z: nn.functional.cross_entropy(z.tanh(), torch.arange(len(z)) % z.shape[1]),
    "relu": lambda z: z.relu().mean(0).square().sum(),
    "linear": lambda z: (z * torch.arange(z.numel()).view_as(z)).sum(),
    "in place": lambda z: z.relu_().square().mean(),
}


@given(
    m=st.integers(2, 20),
    d_in=st.integers(1, 6),
    d_out=st.integers(2, 4),
    loss=st.sampled_from(sorted(LOSSES)),
    gamma=st.floats(-3, 5),
    bias=st.booleans(),
    ours=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_corrected_statements_hold(m, d_in, d_out, loss, gamma, bias, ours, seed):
    torch.manual_seed(seed)
    norm = (ns.norms.BatchNorm1d if ours else nn.BatchNorm1d)(d_out)
    nn.init.constant_(norm.weight, gamma)
    nn.init.normal_(norm.bias)
    linear = nn.Linear(d_in, d_out, bias=bias)
    found = check(linear, norm, torch.randn(m, d_in), LOSSES[loss], w0=torch.randn(d_out, d_in))
    assert found.holds, str(found)
    assert {row.statement for row in found.rows} >= STATEMENTS
    worst = max(row.error for row in found.rows if row.form != "printed" and row.relation == "=")
    assert worst <= 1e-10


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}, {"padding": "same", "padding_mode": "circular"}],
)
def test_convolutions(options):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 4, 3, **options), nn.BatchNorm2d(4)
    x = torch.randn(3, 2, 6, 6)
    found = check(conv, norm, x, lambda z: (z.tanh() + z.square()).mean(), units=[0, 3])
    assert found.m == 3 * conv(x).shape[2] * conv(x).shape[3]
    assert found.units == (0, 3)
    assert found.holds, str(found)


def test_left_sides_are_the_network_s_own():
    """On a layer of ours, whose eps can be 0, plain autograd in the model gives the same numbers."""
    torch.manual_seed(0)
    linear, norm = nn.Linear(5, 3).double(), ns.norms.BatchNorm1d(3, eps=0).double()
    nn.init.normal_(norm.weight)
    x = torch.randn(16, 5, dtype=torch.float64)
    y = linear(x).detach().requires_grad_()
    (d,) = torch.autograd.grad(norm(y).pow(3).sum(), y)
    by_weight = torch.autograd.grad(norm(linear(x)).pow(3).sum(), linear.weight)[0]
    frame = check(linear, norm, x, lambda z: z.pow(3).sum()).frame().set_index(["statement", "form"])
    lefts = frame.loc[("Theorem 4.1", "corrected"), "left"].to_numpy()
    assert lefts == pytest.approx(d.square().sum(0).numpy(), rel=1e-10)
    lefts = frame.loc[("Theorem 4.4, these inputs", "corrected"), "left"].to_numpy()
    assert lefts == pytest.approx(by_weight.square().sum(1).numpy(), rel=1e-10)


def test_a_linear_input_of_its_own_bound():
    torch.manual_seed(0)
    linear, norm, x = nn.Linear(5, 3), nn.BatchNorm1d(3), torch.randn(16, 5)
    found = check(linear, norm, x, LOSSES["cubic"], lam=100.0)
    assert found.lam == 100
    assert found.holds
    assert check(linear, norm, x, LOSSES["cubic"]).lam == pytest.approx(np.linalg.norm(x.double().numpy(), 2))
    small = check(linear, norm, x, LOSSES["cubic"], lam=0.1)
    assert "Theorem 4.4, these inputs" not in {row.statement for row in small.rows}
    assert any("below the norm" in note for note in small.notes)


def test_large_batches_go_by_products():
    torch.manual_seed(0)
    found = check(nn.Linear(5, 3), nn.BatchNorm1d(3), torch.randn(300, 5), LOSSES["cubic"], units=1)
    assert found.holds
    looked = {row.form: row for row in found.rows if row.statement == "Hessian (41), (42), times g"}
    assert "Hessian (41), (42)" not in {row.statement for row in found.rows}
    assert looked["corrected"].error < 1e-12
    assert not looked["printed"].holds
    assert any("300 values a unit" in note for note in found.notes)


def test_lemma_on_a_trained_pair():
    torch.manual_seed(0)
    data = ns.data.digits(seed=0)
    model = ns.models.MLP(64, 10, width=20, norm="batch")
    w0 = model[1].weight.detach().clone()
    batches = ns.data.batches(data.x_train, data.y_train, batch_size=64, seed=0, steps=30)
    ns.train(model, ns.losses.cross_entropy, batches, torch.optim.SGD(model.parameters(), lr=0.5))
    rest = nn.Sequential(*list(copy.deepcopy(model))[3:]).double()
    labels = data.y_train[:32]
    found = check(
        model[1],
        model[2],
        data.x_train[:32].flatten(1),
        lambda z: ns.losses.cross_entropy(rest(z), labels),
        w0=w0,
        units=2,
    )
    lemma = found.frame().set_index(["statement", "form"]).loc["Lemma 4.5"]
    assert found.holds
    assert lemma["applies"].all()
    assert lemma.loc["corrected", "left"] < float((w0 - model[1].weight).detach().double().square().sum())
    assert "Lemma 4.5, loss at W* and k W*" in {row.statement for row in found.rows}


def test_lemma_without_its_condition_says_nothing():
    torch.manual_seed(0)
    linear = nn.Linear(5, 3)
    found = check(linear, nn.BatchNorm1d(3), torch.randn(9, 5), LOSSES["cubic"], w0=-linear.weight)
    lemma = [row for row in found.rows if row.statement == "Lemma 4.5"]
    assert [row.applies for row in lemma] == [False, False]
    assert "is NOT met: k = -1" in lemma[0].note
    assert "says nothing: its condition is not met" in str(found)
    assert found.holds


def test_leaves_no_trace():
    torch.manual_seed(0)
    linear, norm = nn.Linear(5, 4), nn.BatchNorm1d(4).eval()
    rest = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 1), nn.Flatten(0), _Mean())
    x = torch.randn(12, 5)
    before = [copy.deepcopy(module.state_dict()) for module in (linear, norm, rest)]
    state = torch.get_rng_state()
    found = check(linear, norm, x, rest)
    assert found.holds
    for module, kept in zip((linear, norm, rest), before, strict=True):
        assert all(torch.equal(value, kept[key]) for key, value in module.state_dict().items())
        assert all(parameter.grad is None for parameter in module.parameters())
        assert all(parameter.dtype == torch.float32 for parameter in module.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert x.dtype == torch.float32
    assert not norm.training
    assert any("eval mode" in note for note in found.notes)


def test_modes_of_the_caller_do_not_matter():
    torch.manual_seed(0)
    linear, norm = nn.Linear(5, 3).double(), nn.BatchNorm1d(3).double()
    with torch.inference_mode():
        assert check(linear, norm, torch.randn(9, 5, dtype=torch.float64), LOSSES["cubic"]).holds
    with torch.no_grad():
        assert check(linear.half(), norm.half(), torch.randn(9, 5).half(), LOSSES["cubic"]).holds


class _Mean(nn.Module):
    def forward(self, z):
        return z.square().mean()


def test_results_travel(tmp_path):
    torch.manual_seed(0)
    found = check(nn.Linear(5, 3), nn.BatchNorm1d(3), torch.randn(9, 5), LOSSES["cubic"])
    found.save(tmp_path / "bounds.json")
    stored = json.loads((tmp_path / "bounds.json").read_text())
    assert stored["holds"] is True
    assert stored["kind"] == "bounds"
    assert stored["environment"]["torch"] == torch.__version__
    assert len(stored["rows"]) == len(found.rows) == len(found.frame())
    printed = found.summary().query("statement == 'Theorem 4.1' and form == 'printed'")
    assert printed["holds"].item() == 0
    assert "Theorem 4.1                      printed   <=" in str(found)
    assert "FAILS on 3 of 3" in str(found)
    with pytest.raises(AttributeError):
        found.rows = ()


def test_zero_gamma_passes_nothing():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    nn.init.zeros_(norm.weight)
    found = check(nn.Linear(5, 3), norm, torch.randn(9, 5), LOSSES["cubic"])
    assert found.holds
    assert all(row.left == 0 for row in found.rows if row.statement == "Theorem 4.1")
    assert any("gamma = 0" in note for note in found.notes)


def test_constant_units_are_left_out_or_refused():
    torch.manual_seed(0)
    linear, norm, x = nn.Linear(5, 3), nn.BatchNorm1d(3), torch.randn(9, 5)
    with torch.no_grad():
        linear.weight[1] = 0
    found = check(linear, norm, x, LOSSES["cubic"])
    assert found.units == (0, 2)
    assert found.holds
    assert "Units [1] are constant over the batch (variance 0) and left out." in found.notes
    with pytest.raises(ValueError, match=r"Units \[1\] have the same value all over the batch of 9"):
        check(linear, norm, x, LOSSES["cubic"], units=[1])
    with pytest.raises(ValueError, match="the same value all over the batch of 1"):
        check(linear, norm, x[:1], LOSSES["cubic"])


class _Dropout(nn.Module):
    def forward(self, z):
        return nn.functional.dropout(z, 0.5).sum()


def _refused(message, *, linear=None, norm=None, x=None, downstream=LOSSES["cubic"], **more):
    torch.manual_seed(0)
    linear = nn.Linear(5, 3) if linear is None else linear
    norm = nn.BatchNorm1d(3) if norm is None else norm
    with pytest.raises(ValueError, match=message):
        check(linear, norm, torch.randn(9, 5) if x is None else x, downstream, **more)


def test_bad_layers():
    _refused("linear must be an nn.Linear or nn.Conv2d; got ReLU", linear=nn.ReLU())
    _refused("norm must be a BatchNorm, .* got LayerNorm", norm=nn.LayerNorm(3))
    _refused("got NoisyBatchNorm1d", norm=ns.norms.NoisyBatchNorm1d(3))
    _refused("a norm of 4 features", norm=nn.BatchNorm1d(4))
    _refused("does not take x of shape", x=torch.randn(9, 4))
    _refused(r"got \(9, 2, 3\)", x=torch.randn(9, 2, 5))
    _refused("not finite", x=torch.full((9, 5), float("nan")))
    _refused("x is a tensor, .* got ndarray", x=np.zeros((9, 5)))
    _refused("lazy and has no weights yet", linear=nn.LazyLinear(3))
    _refused("complex values", x=torch.zeros(9, 5, dtype=torch.complex64))
    _refused("on the meta device", linear=nn.Linear(5, 3, device="meta"))
    _refused("on the meta device", x=torch.zeros(9, 5, device="meta"))
    _refused(r"w0 is a tensor of the shape \(3, 5\).* got list", w0=[[1.0]])


def test_bad_downstream():
    _refused(r"one number; got \(9, 3\)", downstream=lambda z: z)
    _refused("one number; got float", downstream=lambda z: 1.0)
    _refused("The loss is inf", downstream=lambda z: z.sum() + float("inf"))
    _refused("downstream does not take z, float64", downstream=lambda z: nn.Linear(3, 1)(z).sum())
    _refused("the same loss for the same z", downstream=_Dropout())
    _refused("does not depend on z", downstream=lambda z: z.detach().sum())
    _refused("does not depend on z", downstream=lambda z: torch.ones((), dtype=torch.float64))
    _refused("must be float64", downstream=lambda z: z.long().sum())


def test_numbers_of_numpy_are_numbers():
    linear, norm, x = nn.Linear(5, 3), nn.BatchNorm1d(3), torch.randn(9, 5)
    found = check(linear, norm, x, LOSSES["cubic"], units=np.int64(1), lam=np.float64(100))
    assert found.units == (0,)
    assert check(linear, norm, x, LOSSES["cubic"], units=np.arange(2), lam=np.float32(100)).units == (0, 1)


def test_bad_numbers():
    _refused("lam bounds the norm", lam=0.0)
    _refused("lam bounds the norm", lam=float("nan"))
    _refused("lam bounds the norm", lam="1")
    _refused("units are whole numbers", units=2.0)
    _refused("units are whole numbers", units=["0"])
    _refused("units are outputs 0 to 2", units=[3])
    _refused("units are outputs 0 to 2", units=[])
    _refused("at least 1", units=0)
    _refused(r"w0 must have the shape \(3, 5\)", w0=torch.randn(5, 3))
    _refused("w_star came without w0", w_star=torch.randn(3, 5))
    _refused("w0 has values that are not finite", w0=torch.full((3, 5), float("nan")))
    _refused("w_star is zero", w0=torch.randn(3, 5), w_star=torch.zeros(3, 5))


def test_printed_statements_fail_on_an_ordinary_layer():
    """E-THM-1 to E-THM-5 in one look; Theorem C.1 with the true maxima over X on both sides."""
    torch.manual_seed(0)
    rest = nn.Sequential(nn.Tanh(), nn.Linear(3, 1)).double()
    found = check(nn.Linear(6, 3), nn.BatchNorm1d(3), torch.randn(20, 6), lambda z: 1e-2 * rest(z).square().sum())
    failed = {row.statement for row in found.rows if row.form == "printed" and not row.holds}
    assert failed == {
        "Theorem 4.1",
        "Theorem 4.2, part 2",
        "Theorem 4.4",
        "Hessian (41), (42)",
        "Theorem C.1, (58), lam = 1",
        "Theorem C.1, lam = 1",
    }
