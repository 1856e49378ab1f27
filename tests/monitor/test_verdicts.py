"""Every verdict turns where its situation does, and none says of cross-entropy that training must break."""

import math
import re

import pytest
import torch
from torch import Tensor, nn

from normscope.losses import half_mse
from normscope.models import MLP
from normscope.monitor import ActivationProbe, CriticalProbe, HealthProbe, LandscapeProbe, Monitor, Record, ShiftProbe
from normscope.stability import Verdict

ALL = ("landscape", "critical", "shift", "activations", "health")
ABOUT = {
    "step",
    "gradient",
    "beta",
    "critical rate",
    "covariate shift",
    "activations",
    "statistics",
    "gamma",
    "depth",
}


def _batch(n: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,))


def _looks(model: nn.Module, loss_fn: object, lr: float, *measure: object, steps: int = 1) -> list[Record]:
    x, y = _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    monitor = Monitor(model, loss_fn, every=1, measure=measure or ALL, budget=None, on_error="raise")
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()  # type: ignore[operator]
        monitor.step(x, y, optimizer)
        optimizer.step()
    return monitor.records


def _verdict(record: Record, about: str) -> Verdict:
    return next(v for v in record.verdicts if v.about == about)


def _own(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y)


def _mlp(norm: str = "batch", depth: int = 3, gamma: float = 1.0) -> nn.Module:
    return MLP(6, 3, width=16, depth=depth, norm=norm, gamma=gamma).double()


@pytest.mark.parametrize("about", ["step", "critical rate"])
@pytest.mark.parametrize("loss_fn", [half_mse, nn.CrossEntropyLoss(), nn.MultiMarginLoss()], ids=lambda f: str(f)[:20])
def test_a_step_too_long(about: str, loss_fn: object) -> None:
    good = _verdict(_looks(_mlp(), loss_fn, 1e-4)[0], about)
    bad = _verdict(_looks(_mlp(), loss_fn, 300.0)[0], about)
    assert good.good is True
    if isinstance(loss_fn, nn.CrossEntropyLoss):
        assert bad.good is None
        assert (
            "networks with BatchNorm survive far above eta*, "
            "but may learn badly from eta* on; those without may fail below it" in bad.text
        )
    elif loss_fn is half_mse:
        assert bad.good is False
        assert "beyond what the curvature" in bad.text
    else:
        assert bad.good is None  # neither of the two
        assert "depends on the loss" in bad.text
    assert "no limit" not in good.text


def test_a_gradient_that_turns_round() -> None:
    assert _verdict(_looks(_mlp(), half_mse, 1e-4)[0], "gradient").good is True
    bad = _verdict(_looks(_mlp("none"), half_mse, 0.5)[0], "gradient")
    assert bad.good is False
    assert "points back" in bad.text


def test_a_spike_of_beta() -> None:
    assert _verdict(_looks(_mlp(), half_mse, 1e-4)[0], "beta").good is True
    bad = _verdict(_looks(_mlp("none"), half_mse, 1.0)[0], "beta")
    assert bad.good is False
    assert "above 2/lr = 2" in bad.text


def test_layers_turned_round_by_those_before_them() -> None:
    measure = ShiftProbe("gradient")
    assert _verdict(_looks(_mlp("none", depth=4), half_mse, 1e-5, measure)[0], "covariate shift").good is True
    bad = _verdict(_looks(_mlp("none", depth=4), half_mse, 0.3, measure)[0], "covariate shift")
    assert bad.good is None
    assert "reverses the gradient" in bad.text
    assert "BatchNorm does not lower this number in general" in bad.text


def test_means_that_jump() -> None:
    calm = _looks(_mlp(), half_mse, 1e-4, ActivationProbe(), steps=2)
    assert not calm[0].verdicts  # nothing to compare with yet
    assert _verdict(calm[1], "activations").good is True
    jumpy = _looks(_mlp(), half_mse, 30.0, ActivationProbe(), steps=2)
    assert _verdict(jumpy[1], "activations").good is None


def test_the_noise_of_the_paper_is_about_the_threshold() -> None:
    noisy = _looks(_mlp("noisy"), half_mse, 1e-9, ActivationProbe(), steps=2)[1]
    seen = noisy.results["activations"]
    jump = seen.mean_changes[seen.layers.index("2")]
    assert jump == pytest.approx(1 / 3, abs=0.15)  # 16 units: a standard error of 0.06


def test_stale_running_statistics() -> None:
    model = _mlp()
    x, _ = _batch()
    for _ in range(60):
        model(x)
    assert _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "statistics").good is True
    model[2].running_mean.add_(30.0)
    bad = _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "statistics")
    assert bad.good is False
    assert "of 2 " in bad.text
    model[2].running_mean.sub_(30.0 * 0.9)
    for _ in range(60):
        model(x)
    model[5].running_var.mul_(50.0)
    assert "of 5 " in _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "statistics").text


def test_running_statistics_are_not_judged_before_they_have_seen_batches() -> None:
    model = _mlp()
    early = _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "statistics")
    assert early.good is None
    assert early.text.startswith("Too early")
    x, _ = _batch()
    for _ in range(12):
        model(x)
    model[2].running_mean.add_(30.0)
    assert _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "statistics").good is False


class ZeroInEval(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else 0 * x


class ThenReLU(nn.BatchNorm1d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


@pytest.mark.parametrize(
    ("layer", "judged"), [(nn.BatchNorm1d, True), (nn.SyncBatchNorm, True), (ThenReLU, True), (ZeroInEval, False)]
)
def test_statistics_are_judged_only_where_eval_mode_computes_what_torch_s_does(
    layer: type[nn.Module], judged: bool
) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), layer(8), nn.Linear(8, 3)).double()
    x, _ = _batch()
    for _ in range(60):
        model(x)
    (record,) = _looks(model, half_mse, 1e-4, HealthProbe())
    said = [verdict.text for verdict in record.verdicts if verdict.about == "statistics"]
    assert [text.startswith("Running statistics lie within") for text in said] == [True] * judged
    assert any("The running statistics of 3 (ZeroInEval) are not" in note for note in record.notes) is not judged


@pytest.mark.parametrize("held", ["momentum 0", "eval mode"])
def test_running_statistics_that_take_no_batch_in_are_judged_at_once(held: str) -> None:
    model = _mlp()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum, layer.training = (0.0, True) if held == "momentum 0" else (0.1, False)
    found = Monitor(model, half_mse, every=1, measure=[HealthProbe()], budget=None, on_error="raise")
    x, y = _batch()
    half_mse(model(x), y).backward()
    record = found.step(x, y, torch.optim.SGD(model.parameters(), lr=1e-4))
    assert record is not None
    assert _verdict(record, "statistics").good is False


def test_a_dead_scale() -> None:
    model = _mlp()
    assert _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "gamma").good is True
    with torch.no_grad():
        model[5].weight[:4] = 1e-5
    bad = _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "gamma")
    assert bad.good is False
    assert "25% of the scales of 5 are dead" in bad.text


def test_one_dead_scale_of_many_is_no_warning() -> None:
    model = nn.Sequential(nn.Linear(6, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 3)).double()
    with torch.no_grad():
        model[1].weight[0] = 1e-5
    found = _verdict(_looks(model, half_mse, 1e-4, HealthProbe())[0], "gamma")
    assert found.good is True
    assert found.text == "Less than 1% of the scales of any normalizer are dead."


@pytest.mark.parametrize("loss", [half_mse, _own], ids=["squared", "cross-entropy"])
def test_an_update_uphill_is_not_up_to_0_times_it(loss: object) -> None:
    model = _mlp("none")
    x, y = _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (-loss(model(x), y)).backward()  # type: ignore[operator]
    monitor = Monitor(model, loss, every=1, measure=["critical"], budget=None, on_error="raise")
    record = monitor.step(x, y, optimizer)
    assert record is not None
    found = _verdict(record, "critical rate")
    assert found.good is (False if loss is half_mse else None)
    assert "no step along this update lowers the loss" in found.text
    assert "0 times" not in found.text


@pytest.mark.parametrize(("scale", "word"), [(1.0, "keep their size"), (8.0, "explode"), (0.1, "vanish")])
def test_gradients_along_depth(scale: float, word: str) -> None:
    model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(8)), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for layer in list(model)[:-1]:
            layer.weight.copy_(scale * torch.eye(6))
    found = _verdict(_looks(model, half_mse, 1e-12, HealthProbe())[0], "depth")
    assert found.good is (scale == 1.0)
    assert word in found.text


@pytest.mark.parametrize(("scale", "word"), [(0.04, "shrink"), (25.0, "grow")])
def test_gradients_that_change_much_a_layer_and_little_in_all_do_not_keep_their_size(scale: float, word: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
        model[1].weight.copy_(scale * torch.eye(6))
    found = _verdict(_looks(model, lambda z, y: z.square().mean(), 1e-12, HealthProbe())[0], "depth")
    assert found.good is True
    assert found.text == (
        f"Gradients {word} towards the input: by a factor of {scale:.2g} over 2 layers, which is within bounds."
    )


def test_every_verdict_is_there_with_formula_and_source() -> None:
    record = _looks(_mlp(), half_mse, 1e-3, steps=2)[1]
    assert {v.about for v in record.verdicts} == ABOUT
    assert all(v.formula and v.source and v.text.endswith(".") for v in record.verdicts)
    # Names a reader can look up, not our numbers for them.
    assert not any("seed" in v.source for v in record.verdicts)


_BREAKS = re.compile(r"too large|diverge|overshoot|beyond what|break|unstable|explode", re.IGNORECASE)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("lr", [0.1, 3.0, 100.0, 1e4])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), _own], ids=["known", "hidden"])
def test_cross_entropy_is_never_said_to_break(norm: str, lr: float, loss: object) -> None:
    for record in _looks(_mlp(norm), loss, lr, "landscape", "critical", "shift", "activations", steps=3):
        for verdict in record.verdicts:
            assert not _BREAKS.search(verdict.text), verdict
            if verdict.about in ("step", "critical rate"):
                assert verdict.good is not False
                assert (verdict.good is None) == (
                    "networks with BatchNorm survive far above eta*, "
                    "but may learn badly from eta* on; those without may fail below it" in verdict.text
                )


def test_a_gradient_of_zero_points_nowhere() -> None:
    model = nn.Linear(6, 3).double()

    def flat(output: Tensor, y: Tensor) -> Tensor:
        return 0.0 * output.sum()

    record = _looks(model, flat, 0.1, LandscapeProbe(), CriticalProbe())[0]
    gradient = _verdict(record, "gradient")
    assert gradient.good is None
    assert "points back" not in gradient.text
    assert _verdict(record, "beta").good is None
    assert _verdict(record, "step").good is True


def test_a_loss_that_is_nan_gets_no_verdict_on_its_steps() -> None:
    model = nn.Linear(6, 3).double()

    def broken(output: Tensor, y: Tensor) -> Tensor:
        return output.sum() * math.nan

    record = _looks(model, broken, 0.1, LandscapeProbe(), CriticalProbe(), ShiftProbe())[0]
    for verdict in record.verdicts:
        assert verdict.good is not True, verdict
        assert "points back" not in verdict.text
        assert "raises" not in verdict.text


def test_a_step_into_infinity_is_no_small_beta() -> None:
    model = _mlp("none")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e30)
    record = _looks(model, half_mse, 1e30, LandscapeProbe())[0]
    assert math.isnan(record.results["landscape"].beta)
    assert _verdict(record, "beta").good is None
    assert _verdict(record, "step").good is False
