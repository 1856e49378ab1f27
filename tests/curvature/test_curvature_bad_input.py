"""Models, losses, batches and optimizers that are not what a measurement hopes for: right all the same, or refused."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import Monitor, losses, measure, norms
from normscope.curvature import Solver

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.randint(3, (24,), generator=torch.Generator().manual_seed(2))
EXACT = {"solver": Solver(tol=1e-9), "hessian": False}


def net(*middle: nn.Module, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), *middle, nn.Linear(6, 3)).double()


class Centred(nn.Module):
    """A loss with state: a running centre that enters it, and a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.calls = 0

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        self.centre = 0.9 * self.centre + 0.1 * f.detach().mean(0)
        return losses.half_mse(f - self.centre, y)


def test_a_loss_with_state_is_left_as_it_is():
    model, loss = net(nn.Tanh()), Centred().double()
    loss(model(X), Y)
    centre = loss.centre
    before = centre.clone()
    measure(model, loss, (X, Y), compare=("frozen",), layers=True)
    assert loss.calls == 1
    assert loss.centre is centre
    assert torch.equal(centre, before)


def test_a_monitored_run_with_such_a_loss_is_the_same():
    ends = []
    for watched in (False, True):
        model, loss = net(nn.BatchNorm1d(6), nn.Tanh()), Centred().double()
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        monitor = Monitor(model, loss, every=2, measure=["curvature"], on_error="raise", budget=None)
        for _ in range(6):
            opt.zero_grad()
            loss(model(X), Y).backward()
            if watched:
                monitor.step(X, Y, opt)
            opt.step()
        assert loss.calls == 6
        ends.append([*model.state_dict().values(), loss.centre])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("make", [nn.BatchNorm1d, norms.BatchNorm1d])
def test_a_forward_patched_onto_a_layer_is_in_both_directions_of_the_product(make, stats):
    model = net(make(6))
    plain = nn.Sequential(model[0], copy.deepcopy(model[1]), nn.Tanh(), model[2])
    forward = model[1].forward
    model[1].forward = lambda z: forward(z).tanh()
    found, expected = (measure(m, losses.half_mse, (X, Y), stats=stats, **EXACT) for m in (model, plain))
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-8)


class TorchAct(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class OurAct(norms.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class LpAct(norms.LpNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class ByKeyword(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x)


class Functional(nn.Module):
    """A normalizer without a layer."""

    def __init__(self, of: object = F.batch_norm) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        if self.of is F.batch_norm:
            return F.batch_norm(x, None, None, training=True)
        return torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)


class WrittenOut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


FROZEN = {
    "torch's, extended": TorchAct(6),
    "ours, extended": OurAct(6),
    "l1, extended": LpAct(6, p=1),
    "torch's by keyword": ByKeyword(nn.BatchNorm1d(6)),
    "ours by keyword": ByKeyword(norms.BatchNorm1d(6)),
    "functional": Functional(),
    "of torch": Functional(torch.batch_norm),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_is_the_same_loss_with_statistics_held(name):
    """The same curvature as with the statistics written in as constants, by the layer's weights left at 1 and 0."""
    model = net(FROZEN[name])
    with torch.no_grad():
        z = model[0](X)
        mean = z.mean(0)
        scale = z.abs().mean(0) + 1e-5 if name.startswith("l1") else (z.var(0, correction=0) + 1e-5).sqrt()

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = (x - mean) / scale
            return y.relu() if "extended" in name else y

    chosen = {"parameters": lambda name, p: name.partition(".")[0] in ("0", "2")}
    found = measure(model, losses.half_mse, (X, Y), stats="frozen", **chosen, **EXACT)
    batch = measure(model, losses.half_mse, (X, Y), **chosen, **EXACT)
    expected = measure(net(Constant()), losses.half_mse, (X, Y), **chosen, **EXACT)
    assert found.loss == pytest.approx(batch.loss, rel=1e-12)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-8)
    assert batch.lambda_max != pytest.approx(expected.lambda_max, rel=1e-2)
    assert not any("depend on other samples" in note for note in found.notes)


def test_a_normalizer_written_out_is_said():
    found = measure(net(WrittenOut()), losses.half_mse, (X, Y), compare=("batch", "frozen", "running"), hessian=False)
    assert math.isnan(found.by_statistics["frozen"])
    assert math.isnan(found.statistics_residuals["frozen"])
    assert math.isfinite(found.by_statistics["running"])
    assert sum("stats='frozen' is nan" in note for note in found.notes) == 1
    assert any("stats='running' outputs still depend on other samples" in note for note in found.notes)
    asked = measure(net(WrittenOut()), losses.half_mse, (X, Y), stats="frozen")
    assert any("stats='frozen' outputs still depend on other samples" in note for note in asked.notes)
    for known in (nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Tanh()):
        found = measure(net(known), losses.half_mse, (X, Y), compare=("frozen", "running"), hessian=False)
        assert not any("depend on other" in note for note in found.notes)
        assert math.isfinite(found.by_statistics["frozen"])


@pytest.mark.parametrize("matrix", ["ggn", "hessian", "fisher"])
def test_one_pass_beside_the_products_and_one_of_few_samples(matrix):
    """The gradient and the products go on from the same pass; whether outputs mix is looked for in a small one."""
    for stats in ("batch", "frozen", "running"):
        model, calls = net(nn.BatchNorm1d(6)), []
        model[0].register_forward_hook(lambda _, args, __, calls=calls: calls.append(len(args[0])))
        found = measure(model, losses.half_mse, (X, Y), stats=stats, matrix=matrix, hessian=False)
        # In eval mode J v too goes by the graph of that pass, else by a forward for each product.
        passes = 1 if matrix == "hessian" or stats == "running" else found.products + 1
        few = [count for count in calls if count != len(X)]
        assert few == [8] * (stats != "batch")
        # Besides, where the loss is as trained, the one here and at most eight steps for the critical rate.
        beside = len(calls) - len(few) - passes
        assert 1 < beside <= 9 if stats == "batch" else beside == 0


def test_a_forward_that_takes_no_fewer_samples_is_looked_at_whole():
    class Fixed(nn.Module):
        def forward(self, x):
            return x - (x.sum(0) / 12 if len(x) == 12 else x.view(12, -1))

    for layer, mixes in ((Fixed(), True), (nn.Flatten(), False)):
        found = measure(net(layer), losses.half_mse, (X[:12], Y[:12]), stats="running", hessian=False)
        assert any("depend on other" in note for note in found.notes) == mixes


def test_layers_without_running_statistics_are_said_and_not_cut():
    model = net(nn.BatchNorm1d(6, track_running_stats=False))
    found = measure(model, losses.half_mse, (X, Y), stats="running", **EXACT)
    assert any("No running statistics in 1" in note for note in found.notes)
    with pytest.raises(ValueError, match="layers 1 take their statistics over the batch"):
        measure(model, losses.half_mse, (X, Y), stats="running", micro_batch=8)


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("layer", [Functional(), WrittenOut()])
def test_outputs_that_depend_on_other_samples_are_not_cut(layer, stats):
    with pytest.raises(ValueError, match="output of one sample depends on others"):
        measure(net(layer), losses.half_mse, (X, Y), stats=stats, micro_batch=8)


def test_a_forward_that_mixes_larger_batches_only_is_not_cut():
    class Larger(nn.Module):
        def forward(self, x):
            return x - x.mean(0) if len(x) > 8 else x

    with pytest.raises(ValueError, match="output of one sample depends on others"):
        measure(net(Larger()), losses.half_mse, [(X, Y), (2 * X, Y)], over="data")


IGNORED = torch.where(torch.arange(24) % 5 == 0, -100, LABELS)
UNEVEN = {
    "class weights": (nn.CrossEntropyLoss(weight=torch.tensor([1, 5, 0.2], dtype=torch.float64)), LABELS),
    "ignored targets": (nn.CrossEntropyLoss(), IGNORED),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), LABELS),
    "a mean": (F.cross_entropy, LABELS),
    "a root": (lambda f, y: F.cross_entropy(f, y) * len(f) ** 0.5, LABELS),
    "probabilities": (lambda f, y: F.nll_loss(f.softmax(1).log(), y), LABELS),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_parts_count_what_they_count_in_the_loss(name):
    loss_fn, y = UNEVEN[name]
    whole = measure(net(nn.Tanh()), loss_fn, (X, y), solver=Solver(tol=1e-9), hessian=True)
    parts = measure(net(nn.Tanh()), loss_fn, (X, y), solver=Solver(tol=1e-9), hessian=True, micro_batch=4)
    for field in ("lambda_max", "hessian_max", "hessian_min", "loss"):
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-7), field


def test_a_sum_is_told_from_a_mean_at_a_loss_of_zero():
    model = net(nn.Tanh())
    y = model(X).detach()
    whole = measure(model, losses.half_sse, (X, y), **EXACT)
    assert whole.loss == 0
    found = measure(model, losses.half_sse, (X, y), micro_batch=8, **EXACT)
    assert found.lambda_max == pytest.approx(whole.lambda_max, rel=1e-8)
    with pytest.raises(ValueError, match="share in the loss of all data cannot be read"):
        measure(model, lambda f, y: (f * 0.0).sum(), (X, y), micro_batch=8)


def test_targets_in_a_tuple_are_put_together():
    def two(f: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return losses.half_mse(f, y[0]) + F.cross_entropy(f, y[1])

    whole = measure(net(nn.Tanh()), two, (X, (Y, LABELS)), **EXACT)
    batches = [(X[:10], (Y[:10], LABELS[:10])), (X[10:], (Y[10:], LABELS[10:]))]
    parts = measure(net(nn.Tanh()), two, batches, over="data", **EXACT)
    assert parts.lambda_max == pytest.approx(whole.lambda_max, rel=1e-8)


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
def test_a_penalty_inside_the_loss_is_in_the_matrix(matrix):
    model = net(nn.Tanh())
    plain = measure(model, losses.half_mse, (X, Y), solver=Solver(tol=1e-9), hessian=True)

    def penalized(f: Tensor, y: Tensor) -> Tensor:
        return losses.half_mse(f, y) + 10 * sum(p.square().sum() for p in model.parameters())

    found = measure(model, penalized, (X, Y), matrix=matrix, solver=Solver(tol=1e-9), hessian=True)
    assert found.lambda_max == pytest.approx(plain.lambda_max + 20, rel=1e-8)
    assert found.hessian_max == pytest.approx(plain.hessian_max + 20, rel=1e-8)
    assert any("reads parameters itself" in note for note in found.notes)
    assert not any("reads parameters itself" in note for note in plain.notes)


def test_a_loss_that_also_multiplies_by_a_parameter_has_the_whole_matrix():
    """l(f, w) = 1/2 w^2 f^2 at f = v: by (v, w) the Gauss-Newton matrix is the Hessian, mixed terms and all."""

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
            self.w = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.v * x

    model = Scalar()
    found = measure(
        model, lambda f, y: 0.5 * (model.w * f).square().sum(), (X[:1, :1] * 0 + 1, None), solver=Solver(tol=1e-9)
    )
    expected = float(torch.linalg.eigvalsh(torch.tensor([[9.0, 12.0], [12.0, 4.0]], dtype=torch.float64))[-1])
    assert found.lambda_max == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_loss_that_holds_the_parameters_is_refused(matrix):
    model = net(nn.Tanh())
    kept = list(model.parameters())
    with pytest.raises(ValueError, match="holds parameters of the model itself.*at each call"):
        measure(model, lambda f, y: losses.half_mse(f, y) + sum(p.square().sum() for p in kept), (X, Y), matrix=matrix)


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5)


def halves(f: Tensor, y: Tensor) -> Tensor:
    return losses.half_mse(f, y.mul_(0.5))


def test_a_batch_that_is_written_into_is_left_as_it_is_and_read_right():
    inner = net(nn.Tanh())
    expected = measure(inner, losses.half_mse, (0.5 * X, Y), solver=Solver(tol=1e-9), hessian=True)
    relu = measure(inner, losses.half_mse, (X.relu(), Y), solver=Solver(tol=1e-9), hessian=True)
    lower = measure(inner, losses.half_mse, (X, 0.5 * Y), solver=Solver(tol=1e-9), hessian=True)
    x, y = X.clone(), Y.clone()
    cases = (
        (nn.Sequential(Halves(), inner), losses.half_mse, expected),
        (nn.Sequential(nn.ReLU(inplace=True), inner), losses.half_mse, relu),
        (inner, halves, lower),
    )
    for model, loss_fn, right in cases:
        found = measure(model, loss_fn, (x, y), solver=Solver(tol=1e-9), hessian=True)
        for field in ("loss", "lambda_max", "hessian_max", "hessian_min"):
            assert getattr(found, field) == pytest.approx(getattr(right, field), rel=1e-7), field
        assert torch.equal(x, X)
        assert torch.equal(y, Y)


def test_the_tensors_of_a_loss_follow_the_products_dtype():
    model, weight = net(nn.Tanh()).half(), torch.tensor([1, 5, 0.2])
    found = measure(model, nn.CrossEntropyLoss(weight=weight.half()), (X.half(), LABELS))
    wide = measure(
        copy.deepcopy(model).float(), nn.CrossEntropyLoss(weight=weight.half().float()), (X.half().float(), LABELS)
    )
    assert found.lambda_max == pytest.approx(wide.lambda_max, rel=1e-3)


class Bowls(nn.Module):
    """Two parameters with curvatures 100 and 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(1, 1, dtype=torch.float64)) for _ in range(2))
        self.spare = nn.Linear(2, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([10 * x @ self.a, 0.1**0.5 * x @ self.b], 1)


ONE = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))


def _run(model: Bowls, opt: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        opt.zero_grad()
        losses.half_mse(model(ONE[0]), ONE[1]).backward()
        opt.step()
    return float(losses.half_mse(model(ONE[0]), ONE[1]).detach())


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_groups_with_their_own_learning_rates_have_one_limit(share):
    """100 at 0.01 and 0.1 at 5 trains: eta* is 10, for the larger of the two, where the smaller is 0.02."""
    model = Bowls()
    opt = torch.optim.SGD([{"params": [model.a], "lr": 0.01}, {"params": [model.b], "lr": 5.0}])
    found = measure(model, losses.half_mse, ONE, optimizer=opt, solver=Solver(tol=1e-9))
    assert found.eta_star == pytest.approx(10)
    assert found.preconditioned
    assert found.verdict(5.0).good
    assert "largest learning rate" in found.rule
    for group in opt.param_groups:
        group["lr"] *= share * found.eta_star / 5.0
    end = _run(model, opt, 300)
    assert end < 1e-6 if share < 1 else end > 1e2


def test_the_monitor_judges_such_groups_alike():
    model = Bowls()
    opt = torch.optim.SGD([{"params": [model.a], "lr": 0.01}, {"params": [model.b], "lr": 5.0}])
    monitor = Monitor(model, losses.half_mse, measure=["curvature"], on_error="raise")
    losses.half_mse(model(ONE[0]), ONE[1]).backward()
    record = monitor.step(*ONE, opt)
    assert record.verdicts[0].good
    assert record.results["curvature"].eta_star == pytest.approx(10)


def test_curvature_is_by_the_optimizers_parameters():
    model = Bowls()
    found = measure(model, losses.half_mse, ONE, optimizer=torch.optim.SGD([model.b], lr=1.0), layers=True)
    assert found.lambda_max == pytest.approx(0.1)
    assert any("does not hold a, spare.weight, spare.bias" in note for note in found.notes)
    assert found.settings["parameters"] == ["b"]
    with pytest.raises(ValueError, match="none of the parameters that parameters= chose"):
        measure(
            model, losses.half_mse, ONE, optimizer=torch.optim.SGD([model.b], lr=1.0), parameters=lambda n, p: n == "a"
        )
    with pytest.raises(ValueError, match="None of the model's parameters is in the optimizer"):
        measure(model, losses.half_mse, ONE, optimizer=torch.optim.SGD(Bowls().parameters(), lr=1.0))


def test_an_optimizer_that_maximizes_is_refused():
    model = Bowls()
    with pytest.raises(ValueError, match="maximizes.*maximize=False"):
        measure(model, losses.half_mse, ONE, optimizer=torch.optim.SGD(model.parameters(), lr=1.0, maximize=True))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_parameter_the_optimizer_has_no_gradient_of_has_no_part(kind):
    model, alone = Bowls(), Bowls()
    found = []
    for module, parameters in ((model, model.parameters()), (alone, [alone.a, alone.b])):
        opt = kind(parameters, lr=1e-3, weight_decay=0.1)
        _run(module, opt, 3)
        found.append(measure(module, losses.half_mse, ONE, optimizer=opt, solver=Solver(tol=1e-9)))
    assert found[0].lambda_max == pytest.approx(found[1].lambda_max, rel=1e-9)
    assert any("does not move spare.weight, spare.bias" in note for note in found[0].notes)
    head = kind([alone.b])
    _run(alone, head, 3)
    measure(alone, losses.half_mse, ONE, optimizer=head, parameters=lambda name, p: name == "b")


DECAYED = {
    "sgd": (torch.optim.SGD, {"momentum": 0.5}),
    "adam": (torch.optim.Adam, {"betas": (0.5, 0.99), "eps": 0.3}),
    "adamw": (torch.optim.AdamW, {"betas": (0.5, 0.99), "eps": 0.3}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 0.3}),
}


class Coupled(nn.Module):
    """Two parameters whose curvature mixes them, one with weight decay."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.full((1, 1), v, dtype=torch.float64)) for v in (1.0, -0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x @ (2 * self.a + self.b), x @ self.b], 1)


@pytest.mark.parametrize("share", [0.97, 1.03])
@pytest.mark.parametrize("name", DECAYED)
def test_weight_decay_on_some_parameters_has_its_limit(name, share):
    """Run with the preconditioner held, on both sides of it."""
    kind, options = DECAYED[name]
    model = Coupled()
    groups = [{"params": [model.a], "weight_decay": 3.0}, {"params": [model.b], "weight_decay": 0.0}]
    opt = kind(groups, lr=1e-3, **options)
    for _ in range(3):
        opt.zero_grad()
        losses.half_mse(model(ONE[0]), ONE[1]).backward()
        opt.step()
    eta = share * measure(model, losses.half_mse, ONE, optimizer=opt, solver=Solver(tol=1e-9)).eta_star
    inverse, beta, momentum = [1.0, 1.0], 0.0, 0.0
    if name != "sgd":
        states = [opt.state[p] for p in (model.a, model.b)]
        moments = [s["square_avg"] if name == "rmsprop" else s["exp_avg_sq"] / (1 - 0.99**3) for s in states]
        inverse = [1 / (float(m) ** 0.5 + 0.3) for m in moments]
        beta = 0.0 if name == "rmsprop" else 0.5
    else:
        momentum = 0.5
    h = torch.tensor([[4.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    decay = torch.diag(torch.tensor([3.0, 0.0], dtype=torch.float64))
    p = torch.diag(torch.tensor(inverse, dtype=torch.float64))
    x, m = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for _ in range(1500):
        slope = h @ x + (0 if name == "adamw" else decay @ x)
        m = momentum * m + slope if name == "sgd" else beta * m + (1 - beta) * slope
        x = x - (eta * decay @ x if name == "adamw" else 0) - eta * p @ m
    assert float(x.norm()) < 1e-3 if share < 1 else float(x.norm()) > 1e3


def test_a_loss_without_curvature_is_refused_whatever_the_optimizer_adds():
    model = net(nn.Tanh())
    opt = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    F.l1_loss(model(X), Y).backward()
    opt.step()
    for options in ({}, {"optimizer": opt}, {"optimizer": torch.optim.SGD(model.parameters(), 0.1, weight_decay=1.0)}):
        with pytest.raises(ValueError, match="linear in the outputs"):
            measure(model, F.l1_loss, (X, Y), **options)


def test_a_verdict_does_not_call_stable_what_bends_down():
    model = net(nn.Tanh())

    def negative(f, y):
        return -f.square().sum()

    with pytest.raises(ValueError, match=r"bends down in the outputs.*hand in its negative"):
        measure(model, negative, (X, Y))
    down = measure(model, negative, (X, Y), matrix="hessian", hessian=True)
    assert down.eta_star == math.inf or down.hessian_min < -down.hessian_max
    assert down.verdict(0.01).good is None
    assert "bends down" in down.verdict(0.01).text
    usual = measure(model, losses.half_mse, (X, Y), hessian=True)
    assert -usual.hessian_max < usual.hessian_min < 0
    assert usual.verdict(0.5 * usual.eta_star).good
    for lr in (math.nan, math.inf, -1.0, 0.0):
        with pytest.raises(ValueError, match="learning rate is a positive number; got"):
            usual.verdict(lr)
