"""Products with J from kept outputs: those of a forward made anew, whatever a model does with its layers."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from normscope import losses, measure
from normscope.curvature import Network
from normscope.curvature.autograd.forward_mode import KeptLayerOutputs
from normscope.isolation.lending import untouched


class Twice(nn.Module):
    """One layer called two times, and once where nothing is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(torch.tanh(self.layer(input=x)))
        with torch.no_grad():
            shift = self.layer(x).mean()
        return y + shift.detach()


class Checkpointed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(input)


def convolutional(**options: object) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, **options), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.LazyLinear(3)
    )


# Model, input shape, kept of called.
MODELS = {
    "plain": (lambda: convolutional(), (5, 2, 6, 6), (3, 3)),
    "strided": (lambda: convolutional(stride=2, padding=1, groups=2, bias=False), (5, 2, 6, 6), (3, 3)),
    "same": (lambda: convolutional(padding="same", dilation=2), (5, 2, 6, 6), (3, 3)),
    "circular": (lambda: convolutional(padding=1, padding_mode="circular"), (5, 2, 6, 6), (3, 3)),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ELU(inplace=True), nn.Linear(5, 3)), (4, 6), (1, 2)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Conv1d(3, 2, 2)), (4, 2, 6), (2, 2)),
    "three dimensions": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Conv3d(2, 1, 2)),
        (3, 1, 4, 4, 4),
        (2, 2),
    ),
    "sequences": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)), (2, 4, 6), (2, 2)),
    "twice": (lambda: nn.Sequential(Twice(), nn.Linear(6, 2)), (4, 6), (3, 4)),
    "checkpointed": (lambda: Checkpointed(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4, 6), (0, 2)),
    "own forward": (lambda: nn.Sequential(Doubled(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4, 6), (1, 1)),
}


def kept_of_called(outputs: KeptLayerOutputs) -> tuple[int, int]:
    calls = [entry for entries in outputs._kept.values() for entry in entries]
    return sum(entry is not None and entry[0]._version == entry[1] for entry in calls), len(calls)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("trained", ["all", "weight", "bias"])
@pytest.mark.parametrize("name", MODELS)
def test_kept_outputs_give_the_products_of_new_ones(name, trained):
    make, shape, counts = MODELS[name]
    torch.manual_seed(0)
    model = make()
    x = torch.randn(shape, dtype=torch.float64)
    model.double()(x)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(trained == "all" or key.endswith(trained))
    if name in ("strided", "sequences") and trained == "bias":
        # Nothing before the first layer's output is trained.
        counts = (counts[0] - 1, counts[1])
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (x, None), stats="batch")
        kept = KeptLayerOutputs(model)
        network.output(around=kept.keeping())
        assert kept_of_called(kept) == counts
        jvp = network.jvp(kept)
        for v in torch.randn(2, network.size, dtype=torch.float64):
            found = jvp(v)
            torch.testing.assert_close(found, network.jvp()(v), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(found, network._reverse_twice()(v), rtol=1e-10, atol=1e-10)
        assert network.forward_mode
        assert kept_of_called(kept) == counts
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_gauss_newton_product_makes_no_output_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (torch.randn(4, 6), torch.zeros(4, 3)), stats="batch")
        product = network.gauss_newton()
        with torch.profiler.profile() as seen:
            product(torch.randn(network.size))
    (linear,) = (event.count for event in seen.key_averages() if event.key == "aten::linear")
    # x dW for both layers, dx W for the second.
    assert linear == 3


class Stopped(nn.Module):
    """What reverse mode does not see: torch's forward mode goes through no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            scale = 1.0 + y.square().mean()
        return self.last(y / scale)


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
def test_what_is_stopped_in_reverse_mode_is_stopped_in_products(matrix):
    torch.manual_seed(0)
    model = Stopped().double()
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    with untouched(model) as lent:
        draws = 3 if matrix == "fisher" else 0
        network = Network(lent, model, losses.half_mse, (x, y), stats="batch", label_draws=draws)
        product = network.product(matrix)
        whole = torch.stack([product(e) for e in torch.eye(network.size, dtype=torch.float64)])
        output = network.output()
        rows = torch.stack([network.vjp(output)(e.view(5, 2)) for e in torch.eye(10, dtype=torch.float64)])
    assert not network.forward_mode
    torch.testing.assert_close(whole, whole.T)
    if matrix == "ggn":
        torch.testing.assert_close(whole, rows.T @ rows / 5)


def test_it_is_said_where_forward_mode_is_not_that_of_the_optimizer():
    torch.manual_seed(0)
    found = measure(Stopped(), losses.half_mse, (torch.randn(5, 6), torch.randn(5, 2)), hessian=False)
    assert any("one that differs from its gradient" in note for note in found.notes)
