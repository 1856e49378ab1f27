"""eta* of every rule, by running the real optimizer on a quadratic a little below and a little above it."""

import math

import pytest
import torch
from torch import Tensor, nn
from twins import dense, opened

from normscope import losses
from normscope.curvature import Solver, measure
from normscope.stability import momentum_limit, optimizer_limit

CURVATURE = 4.0
STEPS = 600

SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "small momentum": {"momentum": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.9, "dampening": 0.6},
    "dampening without momentum": {"momentum": 0.0, "dampening": 0.6},
    "weight decay": {"weight_decay": 1.5},
    "weight decay, momentum": {"momentum": 0.8, "weight_decay": 1.5},
    "weight decay, nesterov": {"momentum": 0.8, "nesterov": True, "weight_decay": 1.5},
}
SECOND_MOMENT = {
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.99)}),
    "adam, beta_1 = 0": (torch.optim.Adam, {"betas": (0.0, 0.99)}),
    "adam, large eps": (torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 0.5}),
    "adam, amsgrad": (torch.optim.Adam, {"betas": (0.8, 0.99), "amsgrad": True}),
    "adam, weight decay": (torch.optim.Adam, {"betas": (0.8, 0.99), "weight_decay": 1.5}),
    "adam, decoupled": (torch.optim.Adam, {"betas": (0.8, 0.99), "weight_decay": 1.5, "decoupled_weight_decay": True}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.99), "weight_decay": 0.0}),
    "adamw, weight decay": (torch.optim.AdamW, {"betas": (0.9, 0.99), "weight_decay": 1.5}),
    "nadam": (torch.optim.NAdam, {"betas": (0.9, 0.99)}),
    "nadam, early schedule": (torch.optim.NAdam, {"betas": (0.9, 0.99), "momentum_decay": 0.0}),
    "nadam, weight decay": (torch.optim.NAdam, {"betas": (0.8, 0.99), "weight_decay": 1.5}),
    "nadam, decoupled": (
        torch.optim.NAdam,
        {"betas": (0.8, 0.99), "weight_decay": 1.5, "decoupled_weight_decay": True, "momentum_decay": 0.0},
    ),
    "adagrad": (torch.optim.Adagrad, {}),
    "adagrad, weight decay": (torch.optim.Adagrad, {"weight_decay": 1.5, "eps": 0.3}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9}),
    "rmsprop, momentum": (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.7}),
    "rmsprop, centered": (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.7, "centered": True}),
    "rmsprop, weight decay": (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.7, "weight_decay": 1.5}),
}


class Bowl(nn.Module):
    """w -> w, so that half_mse against 0 scaled by `curvature` is curvature / 2 w^2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


BATCH = (torch.full((1, 1), CURVATURE**0.5, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    losses.half_mse(model(BATCH[0]), BATCH[1]).backward()
    optimizer.step()


def _ends(model: Bowl, optimizer: torch.optim.Optimizer, lr: float) -> tuple[float, float]:
    """Largest |w| over the first and over the last 50 steps, with the second moments held as they are."""
    (group,) = optimizer.param_groups
    group["lr"] = lr
    state = optimizer.state[model.w]
    moments = {key: state[key].clone() for key in ("exp_avg_sq", "max_exp_avg_sq", "sum") if key in state}
    sizes = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.half_mse(model(BATCH[0]), BATCH[1]).backward()
        for key, value in moments.items():
            coupled = 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]
            gradient = model.w.grad + coupled * model.w.detach()
            # What the step's own average, or sum, turns into `value`.
            if key == "sum":
                state[key].copy_(value - gradient**2)
                continue
            beta = group["betas"][1]
            state[key].copy_((value - (1 - beta) * gradient**2) / beta if key == "exp_avg_sq" else value)
        optimizer.step()
        sizes.append(abs(float(model.w.detach())))
        if sizes[-1] > 1e6:
            break
    return max(sizes[:50]), max(sizes[-50:])


@pytest.mark.parametrize("share", [0.99, 1.01])
@pytest.mark.parametrize("name", SGD)
def test_gradient_descent_turns_at_its_limit(name, share):
    model = Bowl()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **SGD[name])
    found = measure(model, losses.half_mse, BATCH, optimizer=optimizer)
    early, late = _ends(model, optimizer, share * found.eta_star)
    assert late < 1e-2 * early if share < 1 else late > 1e2


@pytest.mark.parametrize("share", [0.99, 1.01])
@pytest.mark.parametrize("name", SECOND_MOMENT)
def test_adaptive_optimizers_turn_at_their_limit(name, share):
    kind, options = SECOND_MOMENT[name]
    model = Bowl()
    optimizer = kind(model.parameters(), lr=1e-3, **options)
    for _ in range(30):
        _step(model, optimizer)
    state = optimizer.state[model.w]
    if kind is torch.optim.NAdam:
        # Its schedule, unlike the moments, is read off as it stands.
        state["exp_avg_sq"] /= 1 - options["betas"][1] ** float(state["step"])
        state["step"].fill_(1e6)
        state["mu_product"].fill_(0.0)
    if options.get("centered"):
        state["grad_avg"].fill_(0.2)
        state["square_avg"].fill_(0.5)
    found = measure(model, losses.half_mse, BATCH, optimizer=optimizer)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        # Late, where the corrections of the moments' start are 1; the corrected second moment is what was measured.
        correction = 1 - options["betas"][1] ** float(state["step"])
        state["exp_avg_sq"] /= correction
        if "max_exp_avg_sq" in state:
            state["max_exp_avg_sq"] /= correction
        state["step"].fill_(1e6)
    elif kind is torch.optim.RMSprop:
        optimizer.param_groups[0]["alpha"] = 1.0
    early, late = _ends(model, optimizer, share * found.eta_star)
    assert late < 1e-2 * early if share < 1 else late > 1e2


def test_weight_decay_is_scaled_by_the_preconditioner_where_the_optimizer_adds_it_to_the_gradient():
    """lambda_P = (h + wd) / P for Adam and RMSprop; AdamW shrinks beside it: (h / P) + wd (1 + b) / (1 - b)."""
    for kind, expected in (
        (torch.optim.Adam, (CURVATURE + 1.5) / 2),
        (torch.optim.RMSprop, (CURVATURE + 1.5) / 2),
        (torch.optim.AdamW, CURVATURE / 2 + 1.5 * 1.9 / 0.1),
    ):
        model = Bowl()
        optimizer = kind(model.parameters(), eps=0.0, weight_decay=1.5)
        _step(model, optimizer)
        state = optimizer.state[model.w]
        key = "square_avg" if kind is torch.optim.RMSprop else "exp_avg_sq"
        state[key].fill_(4.0 * (1.0 if kind is torch.optim.RMSprop else 1 - 0.999))
        found = measure(model, losses.half_mse, BATCH, optimizer=optimizer, hessian=True, layers=True)
        for value in (found.lambda_max, found.hessian_max, found.by_layer["(Bowl)"]):
            assert value == pytest.approx(expected, rel=1e-9)


def _two_layers(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    return model, (torch.randn(9, 3, generator=generator, dtype=dtype), torch.zeros(9, 2, dtype=dtype))


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_preconditioned_matrix_is_that_of_the_whole_network(decay):
    model, (x, y) = _two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=decay)
    for _ in range(5):
        optimizer.zero_grad()
        losses.half_mse(model(x), y + 1).backward()
        optimizer.step()
    diagonal = [
        (optimizer.state[p]["exp_avg_sq"] / (1 - 0.999**5)).sqrt().reshape(-1) + 1e-8 for p in model.parameters()
    ]
    p = torch.cat(diagonal)
    with opened(model, losses.half_mse, (x, y)) as net:
        h = dense(net.gauss_newton(), net.size) + decay * torch.eye(net.size, dtype=torch.float64)
    expected = float(torch.linalg.eigvalsh(h / (p[:, None] * p).sqrt())[-1])
    for dtype in (None, torch.float64):
        found = measure(model, losses.half_mse, (x, y), optimizer=optimizer, solver=Solver(tol=1e-8), dtype=dtype)
        assert found.lambda_max == pytest.approx(expected, rel=1e-6)
        assert found.eta_star == pytest.approx(2 * 1.9 / 0.1 / expected, rel=1e-6)


def test_products_in_another_dtype_read_the_optimizer_of_the_model():
    model, (x, y) = _two_layers(torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    losses.half_mse(model(x), y + 1).backward()
    optimizer.step()
    one = measure(model, losses.half_mse, (x, y), optimizer=optimizer)
    other = measure(model, losses.half_mse, (x, y), optimizer=optimizer, dtype=torch.float64)
    assert other.lambda_max == pytest.approx(one.lambda_max, rel=1e-2)


def test_printed_factors():
    assert momentum_limit().factor == 2
    assert momentum_limit(0.9).factor == pytest.approx(3.8)
    assert momentum_limit(0.9, nesterov=True).factor == pytest.approx(3.8 / 2.8)
    assert momentum_limit(0.9, dampening=0.5).factor == pytest.approx(7.6)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_a_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        momentum_limit(momentum)


def test_groups_that_differ_have_no_bound():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": a.parameters(), "momentum": 0.9}, {"params": b.parameters(), "momentum": 0.0}]
    with pytest.raises(ValueError, match="groups of this SGD differ"):
        optimizer_limit(torch.optim.SGD(groups, lr=0.1), [*a.parameters(), *b.parameters()])
    betas = [{"params": list(a.parameters()), "betas": (0.9, 0.99)}, {"params": list(b.parameters())}]
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        groups = [dict(group) for group in betas]
        groups[1]["betas"] = (0.5, 0.99)
        with pytest.raises(ValueError, match=f"groups of this {kind.__name__} differ"):
            optimizer_limit(kind(groups), [*a.parameters(), *b.parameters()])


def test_groups_that_differ_only_in_name_have_one():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": a.parameters()}, {"params": b.parameters()}], lr=0.1, momentum=0.5)
    assert optimizer_limit(optimizer, [*a.parameters(), *b.parameters()]).factor == 3


def test_an_unknown_optimizer_is_named_with_a_way_out():
    class Mine(torch.optim.SGD):
        pass

    layer = nn.Linear(2, 2, bias=False)
    kinds = ("ASGD", "Adadelta", "Adafactor", "Adamax", "LBFGS", "Muon", "RAdam", "Rprop", "SparseAdam")
    optimizers = [getattr(torch.optim, name)(layer.parameters()) for name in kinds]
    for optimizer in (*optimizers, Mine(layer.parameters(), lr=1.0)):
        with pytest.raises(ValueError, match=f"for {type(optimizer).__name__}; .*SGD.*Adagrad.*leave optimizer="):
            measure(layer, losses.half_mse, (torch.eye(2), torch.eye(2)), optimizer=optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_read_off_alone_a_fresh_one_has_no_preconditioner(kind):
    model, _ = _two_layers()
    with pytest.raises(ValueError, match=f"{kind.__name__} has no second moments yet.*after the first step"):
        optimizer_limit(kind(model.parameters()), list(model.parameters()))


def test_the_optimizer_is_left_as_it_is():
    model, batch = _two_layers()
    optimizer = torch.optim.Adam(model.parameters())
    losses.half_mse(model(batch[0]), batch[1] + 1).backward()
    optimizer.step()
    before = {k: {n: v.clone() for n, v in s.items()} for k, s in optimizer.state.items()}
    measure(model, losses.half_mse, batch, optimizer=optimizer)
    assert all(torch.equal(before[k][n], v) for k, s in optimizer.state.items() for n, v in s.items())
