"""Folded equals unfolded, the original is untouched, and where folding would lie it is left or raises."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from normscope.models import CNN, MLP, VGG, PreActResNet18
from normscope.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
    fold_norms,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ready(model):
    """float64, eval mode, with running statistics and affine parameters that matter."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in model.double().modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                    if tensor is not None:
                        draws = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                        tensor.copy_(draws + 0.5)
    return model.eval()


def check(model, *x, left=(), folded=None):
    before = copy.deepcopy(model.state_dict())
    modules = [(name, id(module), module.training) for name, module in model.named_modules()]
    expected = model(*x)
    result = fold_norms(model)
    torch.testing.assert_close(result.model(*x), expected, **CLOSE)
    assert set(result.left) == set(left)
    if folded is not None:
        assert result.folded == folded
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [(name, id(module), module.training) for name, module in model.named_modules()] == modules
    ours = {id(t) for t in (*model.parameters(), *model.buffers())}
    assert not ours & {id(t) for t in (*result.model.parameters(), *result.model.buffers())}
    return result


NORMS = {
    1: (nn.BatchNorm1d, BatchNorm1d, NoisyBatchNorm1d),
    2: (nn.BatchNorm2d, BatchNorm2d, NoisyBatchNorm2d),
    3: (nn.BatchNorm3d, BatchNorm3d, NoisyBatchNorm3d),
}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["torch", "ours", "noisy"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_convolutions(dim, kind, transposed, bias, affine):
    conv = (TRANSPOSED if transposed else CONVS)[dim](2, 4, 3, stride=2, padding=1, bias=bias)
    model = ready(nn.Sequential(conv, NORMS[dim][kind](4, eps=0.1, affine=affine), nn.ReLU()))
    check(model, random(3, 2, *[5] * dim), folded=("1",))


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["torch", "ours", "noisy"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_linear(kind, bias, affine):
    model = ready(nn.Sequential(nn.Linear(3, 5, bias=bias), NORMS[1][kind](5, eps=0.1, affine=affine)))
    check(model, random(4, 3), folded=("1",))


def test_grouped_and_dilated_convolutions():
    check(ready(nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, dilation=2), nn.BatchNorm2d(8))), random(2, 4, 7, 7))
    model = ready(nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)))
    assert "grouped transposed" in check(model, random(2, 4, 3, 3), left=["1"]).left["1"]


def test_no_bias_in_the_norm_and_sync():
    check(ready(nn.Sequential(nn.Linear(3, 5), BatchNorm1d(5, bias=False))), random(4, 3), folded=("1",))
    check(ready(nn.Sequential(nn.Conv2d(3, 5, 1), nn.SyncBatchNorm(5))), random(4, 3, 2, 2), folded=("1",))


def test_what_is_folded_is_gone_and_the_copy_can_be_folded_again():
    model = ready(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 2), BatchNorm1d(2)))
    result = check(model, random(4, 3, 2), folded=("1", "4"))
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in result.model.modules())
    assert fold_norms(result.model).folded == ()
    assert not any(m.training for m in result.model.modules())


class PostActivation(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.down = nn.Sequential(nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.down(x))


@pytest.mark.parametrize("norm", ["batch", "noisy"])
def test_our_networks(norm):
    mlp = ready(MLP(6, 3, width=8, depth=4, norm=norm))
    assert len(check(mlp, random(5, 2, 3)).folded) == 3
    cnn = ready(CNN(2, 15, channels=(3, 4), norm=norm))
    assert len(check(cnn, random(2, 2, 15, 15)).folded) == 2
    vgg = ready(VGG(width=0.05, norm=norm))
    assert len(check(vgg, random(2, 3, 32, 32)).folded) == 13


def test_resnets():
    stages = nn.Sequential(PostActivation(3), PostActivation(3))
    assert len(check(ready(stages), random(2, 3, 5, 5)).folded) == 6
    # Pre-activation: only norm2 of each of the 8 blocks stands directly behind a convolution of its own.
    resnet = ready(PreActResNet18(width=2, norm="batch"))
    left = [f"blocks.{i}.norm1" for i in range(8)] + ["norm"]
    assert len(check(resnet, random(2, 3, 16, 16), left=left).folded) == 8


class Branch(nn.Module):
    """conv and two BatchNorms, wired by `wire(model, x)`."""

    def __init__(self, wire):
        super().__init__()
        self.conv, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.a, self.b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.wire = wire

    def forward(self, x):
        return self.wire(self, x)


WIRES = {
    "conv used twice": (lambda m, x: m.a(m.conv(x)) + m.b(m.conv(2 * x)), {"a": "used 2 times", "b": "used 2 times"}),
    "two norms on one value": (
        lambda m, x: (lambda h: m.a(h) + m.b(h))(m.conv(x)),
        {"a": "also read by b", "b": "also read by a"},
    ),
    "another reader": (lambda m, x: (lambda h: m.a(h) + h)(m.conv(x)), {"a": "also read by add", "b": "not appear"}),
    "norm used twice": (
        lambda m, x: m.a(m.conv(x)) + m.a(m.other(x)),
        {"a": "it is used 2 times", "b": "not appear"},
    ),
    "conv weight read": (
        lambda m, x: m.a(m.conv(x)) + F.conv2d(x, m.conv.weight),
        {"a": "read directly", "b": "not appear"},
    ),
    "norm weight read": (
        lambda m, x: m.a(m.conv(x)) * m.a.weight.sum(),
        {"a": "read directly", "b": "not appear"},
    ),
    "something between": (
        lambda m, x: m.b(m.a(F.relu(m.conv(x)))),
        {"a": "no linear", "b": "'a' before it is a Batch"},
    ),
    "nothing before": (lambda m, x: m.a(x), {"a": "no linear", "b": "not appear"}),
}


@pytest.mark.parametrize("name", WIRES)
def test_left_with_a_reason(name):
    wire, reasons = WIRES[name]
    result = check(ready(Branch(wire)), random(2, 4, 3, 3), left=reasons, folded=())
    for norm, reason in reasons.items():
        assert reason in result.left[norm]


def test_a_norm_under_two_names_called_by_the_second():
    model = Branch(lambda m, x: m.b(m.conv(x)))
    model.b = model.a
    check(ready(model), random(2, 4, 3, 3), folded=("a",))


def test_a_conv_under_two_names_used_by_both():
    model = Branch(lambda m, x: m.a(m.conv(x)) + m.b(m.other(x)))
    model.other = model.conv
    check(ready(model), random(2, 4, 3, 3), left=["a", "b"])


def test_tied_weights_are_folded_apart():
    model = Branch(lambda m, x: m.a(m.conv(x)) + m.b(m.other(x)))
    model.other.weight = model.conv.weight
    check(ready(model), random(2, 4, 3, 3), folded=("a", "b"))


def test_tied_weights_read_directly():
    model = Branch(lambda m, x: m.b(m.other(x)) + F.conv2d(m.a(m.conv(x)), m.other.weight))
    model.other.weight = model.conv.weight
    check(ready(model), random(2, 4, 3, 3), left=["a", "b"])


def test_parametrized_weight_is_left():
    model = ready(nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.BatchNorm1d(4)))
    assert "parametrized" in check(model, random(5, 3), left=["1"]).left["1"]


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_left(where, hook):
    model = ready(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))

    def double(module, args, *output):
        return 2 * output[0] if output else (2 * args[0],)

    getattr(model[where], hook)(double)
    assert "hooks" in check(model, random(5, 3), left=["1"]).left["1"]


def test_no_running_statistics_is_left():
    model = ready(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)))
    assert "no running statistics" in check(model, random(5, 3), left=["1"]).left["1"]


def test_train_mode_raises_by_name():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model[1].eval()
    with pytest.raises(ValueError, match=r"in train mode are '2.1'. Call model.eval\(\) first"):
        fold_norms(model)


def test_a_model_in_train_mode_with_frozen_norms_is_folded():
    model = ready(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.0)))
    model.training = model[2].training = True
    assert check(model, random(5, 3), folded=("1",)).model[2].training


def test_untraceable_forward_gives_one_clear_message():
    model = ready(Branch(lambda m, x: m.a(m.conv(x)) if x.sum() > 0 else x))
    with pytest.raises(ValueError, match="torch.fx, which cannot trace Branch.*Pass example="):
        fold_norms(model)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, BatchNorm1d])
def test_linear_over_positions_is_never_silently_wrong(norm):
    # L == C: the shapes fit a wrong fold. (N, L, C) is normalized over L, the fold scales C.
    model = ready(nn.Sequential(nn.Linear(3, 4), norm(4)))
    result = check(model, random(5, 3), folded=("1",))
    model(random(5, 4, 3))
    with pytest.raises(ValueError, match=r"2 dimensions only; got shape \(5, 4, 4\)"):
        result.model(random(5, 4, 3))


def test_linear_before_a_norm_of_another_dimension_is_left():
    model = ready(nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(4)))
    assert "another dimension" in check(model, random(5, 4, 3), left=["1"]).left["1"]
    model = ready(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4)))
    assert "maps the last one" in check(model, random(5, 4, 2, 3), left=["1"]).left["1"]


def test_conv1d_on_one_sample_is_never_silently_wrong():
    # (C, L) is a batch of C samples to BatchNorm1d; with L == C the shapes fit.
    model = ready(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    result = check(model, random(2, 3, 4), folded=("1",))
    model(random(3, 4))
    with pytest.raises(ValueError, match=r"3 dimensions only; got shape \(4, 4\)"):
        result.model(random(3, 4))


def test_functions_inside_a_conv_subclass_are_not_skipped():
    class Standardized(nn.Conv2d):
        def forward(self, x):
            w = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
            return F.conv2d(x, w, self.bias)

    check(ready(nn.Sequential(Standardized(3, 4, 1), nn.BatchNorm2d(4))), random(2, 3, 3, 3), left=["1"])


def test_frozen_parameters_stay_frozen():
    model = ready(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).requires_grad_(False)
    assert not any(p.requires_grad for p in fold_norms(model).model.parameters())


def test_float32_model_stays_float32():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    assert {t.dtype for t in fold_norms(model).model.state_dict().values()} == {torch.float32}


def test_a_layer_held_in_a_plain_list_is_left():
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.bn = nn.BatchNorm2d(4)
            self.kept = [self.bn]

        def forward(self, x):
            return self.kept[0](self.conv(x))

    result = fold_norms(Old().eval())
    assert result.folded == ()
    assert "'kept' holds" in result.left["bn"]


def test_a_subclass_with_a_forward_of_its_own_is_left():
    class Twice(BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Twice(4)).eval()
    result = fold_norms(model)
    assert "Twice has a forward of its own" in result.left["1"]
    with pytest.raises(TypeError, match="Twice is a subclass with a forward of its own"):
        torch.fx.symbolic_trace(model)
