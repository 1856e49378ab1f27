"""Networks whose ReLU comes after the residual sum: order parameters against random networks, and what results say."""

import statistics

import pytest
import torch
from networks import residual_mlp
from order_parameters import measured
from torch import Tensor, nn

import normscope as ns
from normscope.prediction.kernels import cotangent


def ratios(make, shape: tuple[int, ...], m: int, seeds: int, stats: str) -> dict[str, float]:
    """Measured over predicted squared gradients, layer by layer, in the mean over networks.

    Over those of the last hidden layer, so that the length of one output's own weights is out of it.
    """
    seen: dict[str, list[float]] = {}
    said: dict[str, list[float]] = {}
    for seed in range(seeds):
        net = make(seed)
        x = torch.randn(m, *shape, generator=torch.Generator().manual_seed(1000 + seed))
        for layer, row in measured(net, x, stats).items():
            seen.setdefault(layer, []).append(row["qt"])
        for row in ns.predict(net, shape, batch_size=m, stats=stats).layers:
            if "qt" in row:
                said.setdefault(row["layer"], []).append(row["qt"])
    found = {layer: statistics.mean(values) / statistics.mean(said[layer]) for layer, values in seen.items()}
    *hidden, _ = found
    return {layer: found[layer] / found[hidden[-1]] for layer in hidden}


class _Leaky(nn.LeakyReLU):
    def __init__(self) -> None:
        super().__init__(0.4)


def test_squared_gradients_with_leaky_slopes():
    """Slopes whose squares are not themselves; standard errors are 1 to 2 %."""
    found = ratios(lambda seed: residual_mlp(seed, width=400, blocks=5, act=_Leaky), (200,), 96, 4, "batch")
    assert all(0.92 < ratio < 1.08 for ratio in found.values()), found


@pytest.mark.parametrize("norm", [True, False])
def test_slopes_of_the_first_block_go_with_those_before_it(norm):
    """A sum has the slope of what it adds to more often than not: without that the stem is at 0.90 and 1.06."""

    def make(seed: int) -> nn.Module:
        net = residual_mlp(seed, width=400, blocks=1)
        if not norm:
            net[1] = net[3].norm = net[3].last = nn.Identity()
            with ns.models.initialization.seeded(seed):
                for layer in (net[0], net[3].first, net[3].second):
                    nn.init.kaiming_normal_(layer.weight)
        return net

    assert ratios(make, (200,), 96, 6, "batch")["0"] == pytest.approx(1, abs=0.045)


@pytest.mark.parametrize("stats", ["batch", "frozen"])
def test_sixteen_narrow_blocks(stats):
    """Finite width: the stem was at 0.74 of what was predicted when places of all samples had one length."""
    found = ratios(lambda seed: residual_mlp(seed, width=125, blocks=16), (200,), 96, 3, stats)
    assert statistics.mean(found.values()) == pytest.approx(1, abs=0.1), found
    assert found["0"] == pytest.approx(1, abs=0.15)


def test_strands_are_few_and_what_they_leave_out_is_little(monkeypatch):
    """A chain of thirty sums with as many strands as are told apart, and with all."""
    net = residual_mlp(0, width=60, blocks=30)
    few = ns.predict(net, (200,), batch_size=64).lambda_max
    monkeypatch.setattr(cotangent, "_STRANDS", 1000)
    assert few == pytest.approx(ns.predict(net, (200,), batch_size=64).lambda_max, rel=0.01)


def test_what_has_no_distribution_is_said():
    """tanh of a sum with rectified values is taken as that of a Gaussian; ReLU is not."""

    def notes(act: type[nn.Module]) -> str:
        net = residual_mlp(0, width=60, blocks=2)
        net[-2].act = act()
        return " ".join(ns.predict(net, (200,)).notes)

    assert "took their place" in notes(nn.Tanh)
    assert "took their place" not in notes(nn.ReLU)


def test_maxima_go_into_a_sum_with_their_distribution():
    """As ResNet-18 begins: the skip connection of the first block starts at max pooling."""

    class Pooled(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            with ns.models.initialization.seeded(seed):
                self.stem, self.norm = nn.Conv2d(3, 96, 3, padding=1, bias=False), nn.BatchNorm2d(96)
                self.convs = nn.ModuleList([nn.Conv2d(96, 96, 1, bias=False) for _ in range(3)])
                self.norms = nn.ModuleList([nn.BatchNorm2d(96) for _ in range(3)])
                self.fc = nn.Linear(96, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = torch.relu(x + norm(conv(x)))
            return self.fc(x.mean((2, 3)))

    found = ns.predict(Pooled(0), (3, 12, 12), batch_size=32)
    assert not any("took their place" in note for note in found.notes)
    off = ratios(Pooled, (3, 12, 12), 32, 6, "batch")
    assert all(0.88 < ratio < 1.12 for ratio in off.values()), off


def test_branches_that_start_at_zero():
    """gamma = 0 at the end of every block, as ResNets are often begun: ReLU of what is rectified changes nothing."""
    found = []
    for seed in range(2):
        net = residual_mlp(seed, width=300, blocks=4)
        for block in net[3:-1]:
            nn.init.zeros_(block.last.weight)
        generator = torch.Generator().manual_seed(seed)
        batch = torch.randn(64, 200, generator=generator), torch.randint(3, (64,), generator=generator)
        lam = ns.measure(net, ns.losses.half_mse, batch, hessian=False).lambda_max
        found.append(ns.predict(net, (200,), "half_mse", batch_size=64).lambda_max / lam)
    assert statistics.mean(found) == pytest.approx(1, abs=0.1)


def test_large_means_have_no_variance_of_their_own():
    """beta = 10^4 at the end of a block: nothing is rectified, and the sum's variance is that of its summands."""
    net = residual_mlp(0, width=60, blocks=2)
    nn.init.constant_(net[3].last.bias, 1e4)
    rows = {row["layer"]: row for row in ns.predict(net, (200,), batch_size=64).layers}
    before, after = (rows[name]["qh"] - rows[name]["qh_xy"] for name in ("3.first", "4.first"))
    assert after - before == pytest.approx(1, abs=0.03)


def test_maxima_and_a_rising_activation_in_either_order():
    """The same function: relu(max z) = max relu(z)."""

    def predicted(*order: type[nn.Module]) -> float:
        layers = {nn.ReLU: nn.ReLU(), nn.MaxPool2d: nn.MaxPool2d(2)}
        with ns.models.initialization.seeded(0):
            stem = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), *(layers[kind] for kind in order)]
            net = nn.Sequential(*stem, nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(512, 5))
        return ns.predict(net, (3, 12, 12), batch_size=32, stats="frozen").lambda_max

    assert predicted(nn.ReLU, nn.MaxPool2d) == predicted(nn.MaxPool2d, nn.ReLU)


def test_maxima_are_no_sums():
    """ReLU of maxima knows their distribution too; what was seen of residual sums is no news of this network."""
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 10)]
    found = ns.predict(nn.Sequential(*stem, *head), (3, 12, 12), batch_size=32)
    assert "Data modes decide" in " ".join(found.warnings)
    assert "residual sums" not in " ".join(found.warnings)
