"""Models whose derivatives torch does not have in every mode, and models that train in half precision."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normscope import losses, measure
from normscope.curvature import Network, Solver
from normscope.curvature.autograd.patching import differentiable_kernels
from normscope.isolation.lending import untouched

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(3, (12,), generator=torch.Generator().manual_seed(1))
SAYS_SO = "reverse mode was used twice"


class Sine(torch.autograd.Function):
    """As many write them: no jvp."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Apply(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def _net(kind: type[nn.Sequential] = nn.Sequential, function=torch.sin) -> nn.Module:
    torch.manual_seed(2)
    inner = kind(nn.Linear(4, 5), nn.BatchNorm1d(5), Apply(function), nn.Dropout(0.3))
    return nn.Sequential(inner, nn.Linear(5, 3)).double()


def _dense(model: nn.Module, matrix: str, stats: str) -> Tensor:
    torch.manual_seed(3)
    with untouched(model) as lent:
        network = Network(lent, model, F.cross_entropy, (X, Y), stats=stats)
        product = network.product(matrix)
        return torch.stack([product(row) for row in torch.eye(network.size, dtype=torch.float64)])


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("matrix", ["ggn", "hessian", "fisher"])
def test_without_forward_mode_reverse_mode_twice_gives_the_same(matrix, stats):
    expected = _dense(_net(), matrix, stats)
    torch.testing.assert_close(_dense(_net(function=Sine.apply), matrix, stats), expected, rtol=1e-10, atol=1e-12)


def test_the_fallback_is_said():
    torch.manual_seed(3)
    plain = measure(_net(), F.cross_entropy, (X, Y), hessian=True)
    torch.manual_seed(3)
    found = measure(_net(function=Sine.apply), F.cross_entropy, (X, Y), hessian=True)
    assert any(SAYS_SO in note for note in found.notes)
    assert not any(SAYS_SO in note for note in plain.notes)
    assert found.lambda_max == pytest.approx(plain.lambda_max, rel=1e-9)
    assert found.hessian_min == pytest.approx(plain.hessian_min, rel=1e-6)


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_activation_checkpointing_repeats_the_layers_under_the_same_statistics(matrix, stats):
    expected = _dense(_net(), matrix, stats)
    torch.testing.assert_close(_dense(_net(Checkpointed), matrix, stats), expected, rtol=1e-10, atol=1e-12)


def test_module_backward_hooks_do_no_harm():
    model = _net().eval()
    expected = _dense(model, "ggn", "batch"), _dense(model, "hessian", "batch")
    model[1].register_full_backward_hook(lambda module, inputs, outputs: None)
    found = _dense(model, "ggn", "batch"), _dense(model, "hessian", "batch")
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_fused_attention_takes_the_path_with_derivatives(training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 4), layer, nn.Flatten(), nn.Linear(8, 3)).double()
    model.train(training)
    fused = torch.backends.mha.get_fastpath_enabled()
    found = measure(model, F.cross_entropy, (X, Y), solver=Solver(tol=1e-8))
    (note,) = found.notes
    assert "here the smallest batch has 12" in note
    eps = 1e-5
    v = found.vector

    def gradient(step: float) -> Tensor:
        offset = 0
        with untouched(model) as lent:
            for leaf in lent.leaves:
                leaf.data.add_(step * v[offset : offset + leaf.numel()].view_as(leaf))
                offset += leaf.numel()
            with differentiable_kernels("cpu"):
                return Network(lent, model, F.cross_entropy, (X, Y), stats="batch").gradient()

    along = (gradient(eps) - gradient(-eps)) / (2 * eps)
    with untouched(model) as lent:
        product = Network(lent, model, F.cross_entropy, (X, Y), stats="batch").hessian()(v)
    torch.testing.assert_close(product, along, rtol=1e-5, atol=1e-7)
    assert torch.backends.mha.get_fastpath_enabled() == fused


def test_products_are_not_rounded_to_fewer_digits_and_the_users_setting_is_back_after():
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul)
    seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            seen.append([kind.fp32_precision for kind in kinds])
            return super().forward(x)

    before = [kind.fp32_precision for kind in kinds]
    try:
        torch.set_float32_matmul_precision("medium")
        asked = [kind.fp32_precision for kind in kinds]
        measure(nn.Sequential(Watched(3, 2)), F.mse_loss, (torch.randn(5, 3), torch.randn(5, 2)))
        assert [kind.fp32_precision for kind in kinds] == asked
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision
    assert asked == ["tf32", "tf32", "bf16"]
    assert seen
    # Those of the device at hand; the others are left alone.
    assert all(row == ["tf32", "tf32", "ieee"] for row in seen)


def _bn_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_measured_in_float32(dtype):
    model = _bn_net().to(dtype)
    model[0].bias.requires_grad_(False)
    wide = _bn_net().to(dtype).float()
    wide[0].bias.requires_grad_(False)
    x = X.to(dtype)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = measure(model, F.cross_entropy, (x, Y), hessian=True)
    expected = measure(wide, F.cross_entropy, (x.float(), Y), hessian=True)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-6)
    assert found.hessian_min == pytest.approx(expected.hessian_min, rel=1e-5)
    assert any("float32" in note for note in found.notes)
    assert all(torch.equal(t, before[name]) and t.dtype == before[name].dtype for name, t in model.state_dict().items())


class Mixed(nn.Module):
    """A convolution that gets what a linear map gives: of another dtype than its weights where autocast is on."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self.first, self.conv, self.last = nn.Linear(12, 32), nn.Conv2d(2, 3, 3), nn.Linear(12, 2)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            h = self.norm(self.conv(self.first(x).view(-1, 2, 4, 4)))
            return self.last(h.tanh().flatten(1)).float()


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_forward_that_switches_autocast_on_itself(matrix, stats):
    torch.manual_seed(0)
    model, x, y = Mixed(), torch.randn(16, 12), torch.arange(16) % 2
    found = []
    for model.enabled in (True, False):
        found.append(measure(model, F.cross_entropy, (x, y), matrix=matrix, stats=stats, hessian=False).lambda_max)
    assert found[0] == pytest.approx(found[1], rel=0.03)


def test_autocast_is_off_inside_the_products_and_still_on_outside():
    model, x = _bn_net(), X.float()
    expected = measure(model, F.cross_entropy, (x, Y))
    with torch.autocast("cpu", torch.bfloat16):
        found = measure(model, F.cross_entropy, (x, Y))
        assert model(x).dtype == torch.bfloat16
    assert found.lambda_max == expected.lambda_max
    assert any("Autocast" in note for note in found.notes)


def test_double_precision_on_request_leaves_optimizers_their_parameters():
    model = _bn_net()
    optimizer = torch.optim.Adam(model.parameters())
    F.cross_entropy(model(X.float()), Y).backward()
    optimizer.step()
    double = measure(model, F.cross_entropy, (X.float(), Y), optimizer=optimizer, dtype=torch.float64, hessian=False)
    single = measure(model, F.cross_entropy, (X.float(), Y), optimizer=optimizer, hessian=False)
    assert double.vector.dtype == torch.float64
    assert double.lambda_max == pytest.approx(single.lambda_max, rel=1e-4)
    with pytest.raises(ValueError, match="float32 or torch.float64"):
        measure(model, F.cross_entropy, (X.float(), Y), dtype=torch.bfloat16)


def test_outputs_that_are_several_tensors_have_all_matrices():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x), x

    model = Pair().double()
    found = measure(model, lambda out, y: losses.half_mse(out[0], y), (X, Y), matrix="hessian", solver=Solver(tol=1e-8))
    plain = measure(model.linear, losses.half_mse, (X, Y), solver=Solver(tol=1e-8))
    assert found.lambda_max == pytest.approx(plain.lambda_max, rel=1e-8)
    found = measure(model, lambda out, y: losses.half_mse(out[0], y), (X, Y), solver=Solver(tol=1e-8))
    assert found.lambda_max == pytest.approx(plain.lambda_max, rel=1e-8)
