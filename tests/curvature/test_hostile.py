"""Models that could make a product silently wrong: every one beside central differences of the gradient."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from twins import dense, opened

from normscope import losses, measure
from normscope.curvature import mean_mode
from normscope.curvature.autograd.patching import fast_second_derivatives
from normscope.curvature.operators.statistics import statistics_mode
from normscope.norms import BatchNorm1d


class Written(nn.Module):
    """A forward as a function of the module and its input."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x):
        return self.function(self, x)


class Rounded(torch.autograd.Function):
    """Straight through in reverse mode; in forward mode it says that nothing comes through."""

    @staticmethod
    def forward(x):
        return (4 * x).round() / 4

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, dx):
        return 0 * dx


def slope_of_a_score(module, x):
    """A force: minus the slope of an energy with respect to the inputs."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        (force,) = torch.autograd.grad(module.score(x).square().sum(), x, create_graph=True)
    return force.flatten(1)[:, :3]


def scores(*more):
    return nn.Sequential(nn.Conv2d(2, 4, 3), *more, nn.Tanh(), nn.Conv2d(4, 2, 2))


def read_when_it_learns(module, x):
    """Calls a layer once more where gradients are on."""
    if torch.is_grad_enabled():
        module.seen = module.layer(2 * x).detach()
    return module.last(torch.tanh(module.layer(x)))


def complex_waves(module, x):
    weight = torch.complex(module.real.weight, module.imaginary.weight)
    return torch.view_as_real(F.conv2d(torch.complex(x, x.flip(0)), weight)).tanh().mean((2, 3, 4))


def dense_pair(function):
    return Written(function, layer=nn.Linear(4, 4), last=nn.Linear(4, 2))


def weight_normed():
    layer = parametrizations.weight_norm(nn.Conv2d(2, 4, 3))
    return nn.Sequential(layer, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


IMAGES, ROWS = (4, 2, 5, 5), (3, 4)
MODELS = {
    "force": (lambda: Written(slope_of_a_score, score=scores()), IMAGES),
    "force through BatchNorm": (lambda: Written(slope_of_a_score, score=scores(nn.BatchNorm2d(4))), IMAGES),
    "calls differ": (lambda: dense_pair(read_when_it_learns), ROWS),
    "complex": (
        lambda: Written(complex_waves, real=nn.Conv2d(2, 4, 3, bias=False), imaginary=nn.Conv2d(2, 4, 3, bias=False)),
        IMAGES,
    ),
    "weight norm": (weight_normed, IMAGES),
    "weight norm by rows": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3), dim=1), nn.Tanh(), nn.Linear(3, 2)),
        ROWS,
    ),
    "weight norm by a hook": (
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3), dim=None), nn.Tanh(), nn.Linear(3, 2)),
        ROWS,
    ),
}


def bent_loss(f, y):
    return 3 * (f - y).tanh().square().mean() + f.square().mean()


def made(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    y = torch.randn_like(make().double()(x).detach())
    return model, (x, y)


def by_differences(model, batch, of, step=1e-5):
    """d of(outputs, parameters) / dtheta, by central differences."""
    parameters = list(model.parameters())

    def at(theta):
        nn.utils.vector_to_parameters(theta, parameters)
        return of(model(batch[0].clone()), parameters).detach().reshape(-1)

    theta = nn.utils.parameters_to_vector(parameters).detach()
    units = step * torch.eye(len(theta), dtype=theta.dtype)
    return torch.stack([(at(theta + unit) - at(theta - unit)) / (2 * step) for unit in units], 1)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_the_hessian_is_that_of_differences(name):
    model, batch = made(name)

    def gradient(f, parameters):
        found = torch.autograd.grad(bent_loss(f, batch[1]), parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in found])

    expected = by_differences(made(name)[0], batch, gradient)
    with opened(model, bent_loss, batch) as network:
        found = dense(network.product("hessian"), network.size)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_gauss_newton_is_that_of_differences(name):
    model, batch = made(name)
    outputs = made(name)[0](batch[0]).detach()
    jacobian = by_differences(made(name)[0], batch, lambda f, _: f)
    middle = torch.autograd.functional.hessian(lambda f: bent_loss(f, batch[1]), outputs)
    middle = middle.reshape(outputs.numel(), outputs.numel())
    with opened(model, bent_loss, batch) as network:
        found = dense(network.product("ggn"), network.size)
    torch.testing.assert_close(found, jacobian.T @ middle @ jacobian, rtol=1e-6, atol=1e-7)


def test_forward_mode_that_gives_nothing_is_not_believed():
    """Zero is its own adjoint: <u, J v> = <J^T u, v> holds where u was made of J v = 0."""
    torch.manual_seed(0)
    model = dense_pair(lambda module, x: Rounded.apply(module.last(module.layer(x).tanh()))).double()
    batch = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    with opened(model, bent_loss, batch) as network:
        found = network.product("ggn")(torch.ones(network.size, dtype=torch.float64))
        assert not network.forward_mode
    assert found.any()


def test_the_mean_mode_is_that_of_reverse_mode():
    torch.manual_seed(0)
    model = dense_pair(lambda module, x: Rounded.apply(module.last(module.layer(x).tanh()))).double()
    plain = dense_pair(lambda module, x: module.last(module.layer(x).tanh())).double()
    plain.load_state_dict(model.state_dict())
    batch = torch.randn(3, 4, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    assert mean_mode(model, batch).lambda_max == pytest.approx(mean_mode(plain, batch).lambda_max)


def test_names_are_torchs_again_after_two_threads():
    names = [torch.conv2d, F.conv2d, torch.batch_norm]
    inside, leave = threading.Event(), threading.Event()

    def other():
        with fast_second_derivatives():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with fast_second_derivatives():
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert [torch.conv2d, F.conv2d, torch.batch_norm] == names


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), BatchNorm1d(3)], ids=["torch", "ours"])
def test_a_thread_that_trains_meanwhile_keeps_its_statistics(layer):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def slope():
        return torch.autograd.grad(layer(x).tanh().pow(3).sum(), x)[0]

    expected, found = slope(), []
    with statistics_mode(layer, "frozen"):
        thread = threading.Thread(target=lambda: found.append(slope()))
        thread.start()
        thread.join()
        frozen = slope()
    torch.testing.assert_close(found[0], expected)
    assert not torch.allclose(frozen, expected)
    torch.testing.assert_close(slope(), expected)


class UsesUpMemory(nn.Module):
    """The forward runs out of memory where it is given tangents."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if torch.autograd.forward_ad._current_level >= 0:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return self.layer(x)


def test_used_up_memory_is_not_taken_for_a_missing_forward_mode():
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        measure(UsesUpMemory(), losses.half_mse, (torch.randn(4, 3), torch.randn(4, 2)))
