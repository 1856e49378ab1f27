"""`measure` from outside: what it gives, what it says, and that it leaves no trace."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from twins import NORMS, data, dense, network, opened

from normscope import losses, norms
from normscope.curvature import STATISTICS, Solver, measure


def batch(net: str = "mlp") -> tuple[Tensor, Tensor]:
    x, y, _ = data(net)
    return x, y


class State:
    """All that a measurement could move."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.objects = [*model.named_parameters(), *model.named_buffers()]
        self.values = [t.detach().clone() for _, t in self.objects]
        self.versions = [t._version for _, t in self.objects]
        self.grads = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
        self.wants = [p.requires_grad for p in model.parameters()]
        self.modes = [(m, m.training) for m in model.modules()]
        self.hooks = [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()
        ]
        self.attributes = [set(vars(m)) for m in model.modules()]
        self.rng = torch.get_rng_state()

    def assert_same(self) -> None:
        model = self.model
        now = [*model.named_parameters(), *model.named_buffers()]
        assert all(a is b for (_, a), (_, b) in zip(self.objects, now, strict=True))
        assert all(torch.equal(a, t) for a, (_, t) in zip(self.values, now, strict=True))
        assert self.versions == [t._version for _, t in now]
        for (grad, value), p in zip(self.grads, model.parameters(), strict=True):
            assert p.grad is grad
            assert grad is None or torch.equal(grad, value)
        assert self.wants == [p.requires_grad for p in model.parameters()]
        assert all(m.training == mode for m, mode in self.modes)
        assert self.hooks == [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()
        ]
        assert self.attributes == [set(vars(m)) for m in model.modules()]
        assert torch.equal(self.rng, torch.get_rng_state())


def _used(norm: str = "batch") -> nn.Module:
    """A model in the middle of training: gradients, hooks, dropout, one layer in eval mode, one parameter frozen."""
    model = nn.Sequential(*network("deep", norm), nn.Dropout(0.3))
    x, y = batch()
    losses.half_mse(model(x), y).backward()
    model[0].register_forward_hook(lambda module, args, output: None)
    model[3].bias.requires_grad_(False)
    model[4].eval()
    return model


EVERYTHING = {"compare": STATISTICS, "hessian": True, "layers": True}


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_is_touched(norm):
    model = _used(norm)
    state = State(model)
    measure(model, losses.half_mse, batch(), **EVERYTHING)
    state.assert_same()


class Refuses(Exception):
    pass


@pytest.mark.parametrize("calls", range(1, 8))
def test_nothing_is_touched_when_it_raises(calls):
    """The loss raises from its first, second, ... call on: before, between and inside the products."""
    model = _used()
    state = State(model)
    count = 0

    def loss(f: Tensor, y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if count >= calls:
            raise Refuses
        return losses.half_mse(f, y)

    with pytest.raises(Refuses):
        measure(model, loss, batch(), **EVERYTHING)
    state.assert_same()


def test_nothing_is_touched_when_a_layer_raises_inside_a_product():
    class Fragile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.autograd.forward_ad._current_level >= 0:
                raise Refuses
            return x

    model = nn.Sequential(*network("mlp", "batch"), Fragile())
    state = State(model)
    with pytest.raises(Refuses):
        measure(model, losses.half_mse, batch(), stats="frozen")
    state.assert_same()


def test_the_generator_of_dropout_is_not_moved_and_its_use_is_said():
    model = nn.Sequential(network("mlp", "batch"), nn.Dropout(0.5))
    torch.manual_seed(3)
    found = measure(model, losses.half_mse, batch())
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(3))
    assert any("dropout" in note for note in found.notes)
    running = measure(model, losses.half_mse, batch(), stats="running")
    assert not any("dropout" in note for note in running.notes)


def test_dropout_has_one_mask_in_every_product():
    model = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 2)).double()
    x, y = batch()
    torch.manual_seed(5)
    mask = torch.dropout(torch.ones(len(x), 64, dtype=torch.float64), 0.5, True)
    torch.manual_seed(5)
    found = measure(model, losses.half_mse, (x, y), solver=Solver(tol=1e-9))

    class Masked(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h * mask

    fixed = nn.Sequential(model[0], Masked(), model[2])
    assert found.lambda_max == pytest.approx(
        measure(fixed, losses.half_mse, (x, y), solver=Solver(tol=1e-9)).lambda_max, rel=1e-8
    )


def test_a_batchnorm_in_eval_mode_is_said():
    model = network("mlp", "batch").eval()
    found = measure(model, losses.half_mse, batch())
    assert any("eval mode" in note for note in found.notes)
    running = measure(model, losses.half_mse, batch(), stats="running")
    assert found.lambda_max == running.lambda_max
    assert any("those of initialization" in note for note in running.notes)
    assert not any("eval mode" in note for note in running.notes)
    in_train_mode = measure(model.train(), losses.half_mse, batch()).notes
    assert len(in_train_mode) == 2
    assert any("eta* is of one batch" in note for note in in_train_mode)
    assert any("here the smallest batch has" in note for note in in_train_mode)


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("norm", ["none", "batch", "l1", "layer"])
def test_the_numbers_are_those_of_the_dense_matrices(norm, matrix):
    model = network("mlp", norm)
    found = measure(model, losses.half_mse, batch(), matrix=matrix, momentum=0.9, solver=Solver(tol=1e-9), **EVERYTHING)
    for stats, value in found.by_statistics.items():
        with opened(model, losses.half_mse, batch(), stats) as net:
            product = net.gauss_newton() if matrix == "ggn" else net.hessian()
            whole = dense(product, net.size)
        assert value == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]), rel=1e-8)
        if stats == "batch":
            at = 0
            for name, layer in model.named_children():
                n = sum(p.numel() for p in layer.parameters())
                if n:
                    top = float(torch.linalg.eigvalsh(whole[at : at + n, at : at + n])[-1])
                    assert found.by_layer[name] == pytest.approx(top, rel=1e-7, abs=1e-9)
                at += n
    with opened(model, losses.half_mse, batch()) as net:
        ends = torch.linalg.eigvalsh(dense(net.hessian(), net.size))
    assert found.hessian_max == pytest.approx(float(ends[-1]), rel=1e-8)
    assert found.hessian_min == pytest.approx(float(ends[0]), rel=1e-8)
    assert found.eta_star == pytest.approx(3.8 / found.lambda_max)
    assert found.lambda_max == found.by_statistics["batch"]
    assert found.converged
    assert found.residual <= 1e-9
    assert found.loss == float(losses.half_mse(model(batch()[0]), batch()[1]).detach())


def test_weight_decay_shifts_every_number_by_itself():
    model = network("mlp", "batch")
    plain = measure(model, losses.half_mse, batch(), solver=Solver(tol=1e-9), **EVERYTHING)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.25)
    found = measure(model, losses.half_mse, batch(), optimizer=sgd, solver=Solver(tol=1e-9), **EVERYTHING)
    for name in ("lambda_max", "hessian_max", "hessian_min"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name) + 0.25, rel=1e-8)
    for table in ("by_statistics", "by_layer"):
        expected = {name: value + 0.25 for name, value in getattr(plain, table).items()}
        assert getattr(found, table) == pytest.approx(expected, rel=1e-8)


def test_a_parameter_filter_takes_a_block():
    model = network("deep", "batch")
    layers = ("0", "3")
    found = measure(
        model,
        losses.half_mse,
        batch(),
        parameters=lambda name, p: name.partition(".")[0] in layers,
        layers=True,
        solver=Solver(tol=1e-9),
    )
    frozen = copy.deepcopy(model)
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name.partition(".")[0] in layers)
    assert found.lambda_max == pytest.approx(
        measure(frozen, losses.half_mse, batch(), solver=Solver(tol=1e-9)).lambda_max, rel=1e-8
    )
    assert set(found.by_layer) == set(layers)
    adam = torch.optim.Adam(model.parameters())
    losses.half_mse(model(batch()[0]), batch()[1]).backward()
    adam.step()
    measure(model, losses.half_mse, batch(), parameters=lambda name, p: p.ndim == 2, optimizer=adam)


def test_products_in_float64_for_a_model_in_float32():
    model = network("mlp", "batch").float()
    x, y = batch()
    found = measure(model, losses.half_mse, (x.float(), y.float()), dtype=torch.float64, solver=Solver(tol=1e-9))
    exact = measure(
        copy.deepcopy(model).double(),
        losses.half_mse,
        (x.float().double(), y.float().double()),
        solver=Solver(tol=1e-9),
    )
    assert found.lambda_max == pytest.approx(exact.lambda_max, rel=1e-9)
    assert next(model.parameters()).dtype == torch.float32


def test_not_converged_is_a_result():
    model = network("deep", "none")
    found = measure(model, losses.half_mse, batch(), solver=Solver(tol=1e-12, max_products=3))
    assert not found.converged
    assert found.residual > 1e-12
    assert found.products == 3
    assert "Not converged" in found.verdict(0.1).text


def test_a_flat_loss_has_no_limit():
    flat = (nn.Linear(2, 1), lambda f, y: 0.0 * f.sum(), (torch.ones(3, 2), None))
    with pytest.raises(ValueError, match="does not change with the outputs"):
        measure(*flat)
    found = measure(*flat, matrix="hessian")
    assert found.lambda_max == 0
    assert found.eta_star == math.inf
    assert found.converged


def test_the_same_seed_gives_the_same_numbers():
    model = network("mlp", "noisy")
    assert measure(model, losses.half_mse, batch()).plain() == measure(model, losses.half_mse, batch()).plain()


@pytest.mark.parametrize("stats", ["batch", "frozen"])
@pytest.mark.parametrize("norm", ["batch", "torch", "l2", "noisy"])
def test_a_batch_of_one_has_no_batch_statistics(norm, stats):
    model, (x, y) = network("mlp", norm), batch()
    state = State(model)
    with pytest.raises(ValueError, match="more than (1|one) value"):
        measure(model, losses.half_mse, (x[:1], y[:1]), stats=stats)
    state.assert_same()
    assert measure(model, losses.half_mse, (x[:1], y[:1]), stats="running").lambda_max > 0


def test_a_batch_of_one_without_batch_statistics_is_fine():
    for norm in ("none", "layer"):
        assert measure(network("mlp", norm), losses.half_mse, tuple(t[:1] for t in batch())).lambda_max > 0


def test_a_loss_that_is_not_scalar_is_refused():
    for bad, got in ((lambda f, y: (f - y) ** 2, r"\(6, 2\)"), (lambda f, y: 1.0, "float")):
        with pytest.raises(ValueError, match=f"must return a scalar; got {got}"):
            measure(network("mlp", "batch"), bad, batch())


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
def test_outputs_in_a_mapping_have_the_curvature_of_the_tensor(matrix):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network("mlp", "batch")

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    found = measure(Two(), lambda f, y: losses.half_mse(f["logits"], y), batch(), matrix=matrix, hessian=False)
    plain = measure(Two().inner, losses.half_mse, batch(), hessian=False)
    assert found.lambda_max == pytest.approx(plain.lambda_max, rel=2e-3)


def test_a_loss_that_is_not_finite_is_said_with_its_place():
    model = network("deep", "none")
    with torch.no_grad():
        model[3].weight[0, 0] = math.inf
    state = State(model)
    with pytest.raises(ValueError, match=r"loss is (nan|inf).*first became so in the output of 3 \(Linear\)"):
        measure(model, losses.half_mse, batch())
    state.assert_same()
    with pytest.raises(ValueError, match="The outputs are finite; the loss is not"):
        measure(network("mlp", "batch"), lambda f, y: f.sum() / 0.0, batch())


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_gradient_that_is_not_finite_is_said(matrix):
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w.abs().sqrt()

    with pytest.raises(ValueError, match="gradient.*not finite.*w"):
        measure(Root(), losses.half_mse, (torch.ones(3, 2), torch.ones(3, 2)), matrix=matrix)


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_parameter_without_gradient_is_said_and_counts_as_zero(matrix):
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = network("mlp", "batch"), nn.Linear(3, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Idle()
    found = measure(model, losses.half_mse, batch(), matrix=matrix, layers=True, solver=Solver(tol=1e-9))
    alone = measure(model.used, losses.half_mse, batch(), matrix=matrix, solver=Solver(tol=1e-9))
    assert found.lambda_max == pytest.approx(alone.lambda_max, rel=1e-8)
    assert found.by_layer["idle"] == 0
    assert any("idle.weight" in note and "idle.bias" in note for note in found.notes)
    assert len(alone.notes) == 2
    assert any("eta* is of one batch" in note for note in alone.notes)
    assert any("here the smallest batch has" in note for note in alone.notes)


def test_no_parameter_at_all_is_refused():
    model = network("mlp", "batch")
    with pytest.raises(ValueError, match="no parameter.*chose none"):
        measure(model, losses.half_mse, batch(), parameters=lambda name, p: False)
    with pytest.raises(ValueError, match="no parameter.*none of the model's requires"):
        measure(model.requires_grad_(False), losses.half_mse, batch())


def test_unknown_words_are_named_with_the_known_ones():
    for key, value in (("matrix", "fischer"), ("stats", "train"), ("compare", ("train",))):
        with pytest.raises(ValueError, match="batch|ggn"):
            measure(network("mlp", "batch"), losses.half_mse, batch(), **{key: value})


def test_verdicts_are_worded_for_the_loss():
    model, (x, y, labels) = network("mlp", "batch"), data("mlp")
    squared = measure(model, losses.half_mse, (x, y))
    assert squared.verdict(0.5 * squared.eta_star).good is True
    assert squared.verdict(2 * squared.eta_star).good is False
    entropy = measure(model, F.cross_entropy, (x, labels))
    assert entropy.verdict(2 * entropy.eta_star).good is None
    assert (
        "networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it"
        in entropy.verdict(2 * entropy.eta_star).text
    )


def _invariant(net: str, a: float = 1.0) -> nn.Module:
    model = network(net, "batch")
    for layer in model.modules():
        if isinstance(layer, (norms.BatchNorm1d, norms.BatchNorm2d)):
            layer.eps = 0.0
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter *= a
    return model


@pytest.mark.parametrize("net", ["mlp", "cnn"])
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("a", [0.1, 2.0, 30.0])
def test_a_block_under_a_normalizer_scales_by_one_over_a_squared(a, matrix, net):
    options = {"matrix": matrix, "parameters": lambda name, p: name == "0.weight", "solver": Solver(tol=1e-10)}
    one, scaled = (measure(_invariant(net, s), losses.half_mse, batch(net), **options) for s in (1.0, a))
    assert scaled.loss == pytest.approx(one.loss, rel=1e-12)
    assert scaled.lambda_max * a**2 == pytest.approx(one.lambda_max, rel=1e-8)


@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_a_weight_under_a_normalizer_is_flat_along_itself(net):
    """L(a w) = L(w): <w, g> = 0, H w = -g on the block of one unit's weights, <w, H w> = 0 and G w = 0 (eps = 0)."""
    model = _invariant(net)
    with opened(model, losses.half_mse, batch(net)) as found:
        w = torch.zeros(found.size, dtype=torch.float64)
        n = found.leaves[0].numel()
        w[:n] = found.leaves[0].detach().reshape(-1)
        gradient, hw, gw = found.gradient(), found.hessian()(w), found.gauss_newton()(w)
    scale = float(gradient.abs().max())
    assert abs(float(w @ gradient)) <= 1e-12 * scale
    assert gw.abs().max() <= 1e-12 * scale
    assert abs(float(w @ hw)) <= 1e-12 * scale
    assert (hw[:n] + gradient[:n]).abs().max() <= 1e-11 * scale
    with opened(model, losses.half_mse, batch(net), "frozen") as found:
        assert float(w @ found.gauss_newton()(w)) > 1e-3


def test_a_bias_under_a_normalizer_has_no_curvature_as_trained():
    found = measure(network("mlp", "batch"), losses.half_mse, batch(), parameters=lambda name, p: name == "0.bias")
    assert abs(found.lambda_max) <= 1e-12
    frozen = measure(
        network("mlp", "batch"), losses.half_mse, batch(), parameters=lambda name, p: name == "0.bias", stats="frozen"
    )
    assert frozen.lambda_max > 1e-3
