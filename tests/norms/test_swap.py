"""Every normalizer into every other, against the formulas; what stays the same object, and what is refused."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import reference
from normscope.norms import (
    NORM_NAMES,
    BatchNorm1d,
    BatchNorm2d,
    CovariateNoise,
    InstanceNorm,
    LpNorm2d,
    NoisyBatchNorm2d,
    RMSNorm,
    Swap,
    make_norm,
    swap_norms,
)
from normscope.norms.kinds import NORM_KINDS
from normscope.norms.wrappers import LastDim, core

C, BATCH_EPS = 6, 1e-3
SPACE = {1: (4, C, 5), 2: (3, C, 2, 4), 3: (2, C, 2, 1, 3)}
SILENT = {"n_mu": 0.0, "n_sigma": 1.0, "r_mu": 0.0, "r_sigma": 0.0}
# Two ways to sum fewer than 100 float64 values of size 1 differ by some 100 ulp.
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


class LayerNorm2d(nn.LayerNorm):
    """As in ConvNeXt: LayerNorm over the channels of (N, C, H, W)."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


SECOND = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(C, eps=BATCH_EPS), SPACE[1]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(C, eps=BATCH_EPS), SPACE[2]),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(C, eps=BATCH_EPS), SPACE[3]),
    "BatchNorm2d, no affine": (lambda: nn.BatchNorm2d(C, eps=BATCH_EPS, affine=False), SPACE[2]),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(C, eps=BATCH_EPS), SPACE[2]),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(C, affine=True), SPACE[2]),
    "InstanceNorm1d, plain": (lambda: nn.InstanceNorm1d(C), SPACE[1]),
    "InstanceNorm2d, tracking": (lambda: nn.InstanceNorm2d(C, affine=True, track_running_stats=True), SPACE[2]),
    "GroupNorm": (lambda: nn.GroupNorm(2, C), SPACE[2]),
    "GroupNorm, no affine": (lambda: nn.GroupNorm(2, C, affine=False), SPACE[1]),
    "LayerNorm2d": (lambda: LayerNorm2d(C), (3, C, 2, C)),
    "our BatchNorm1d, no bias": (lambda: BatchNorm1d(C, eps=BATCH_EPS, bias=False), SPACE[1]),
    "our BatchNorm2d": (lambda: BatchNorm2d(C, eps=BATCH_EPS), SPACE[2]),
    "our NoisyBatchNorm2d": (lambda: NoisyBatchNorm2d(C, eps=BATCH_EPS, seed=1), SPACE[2]),
    "our LpNorm2d": (lambda: LpNorm2d(C, 1), SPACE[2]),
    "our CovariateNoise": (lambda: CovariateNoise(C, seed=1), SPACE[3]),
    "our RMSNorm": (lambda: RMSNorm(C), SPACE[2]),
    "our InstanceNorm": (lambda: InstanceNorm(C), SPACE[2]),
}
LAST = {
    "LayerNorm": (lambda: nn.LayerNorm(C), (4, 3, C)),
    "LayerNorm, no bias": (lambda: nn.LayerNorm(C, bias=False), (5, C)),
    "LayerNorm, no affine": (lambda: nn.LayerNorm(C, elementwise_affine=False), (2, 3, 2, C)),
    "RMSNorm": (lambda: nn.RMSNorm(C), (4, 3, C)),
}


def shaken(model):
    """float64, with weights and biases that are not ones and zeros."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5)
    return model


def standardized(x, axes, eps):
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + eps)


def formula(to, x, weight, bias, eps, groups):
    """`to` on (N, C, *space), from the papers."""
    if to in ("none", "noise"):
        return x
    if to in ("batch", "noisy"):
        return reference.batch_norm(x, weight, bias, eps)[0]
    if to in ("l1", "l2", "linf"):
        return reference.lp_norm(x, weight, bias, 1e-5, {"l1": 1, "l2": 2, "linf": math.inf}[to], centered=False)[0]
    per_sample = tuple(range(1, x.ndim))
    if to == "rms":
        y, bias = x / np.sqrt((x**2).mean(axis=per_sample, keepdims=True) + eps), 0 * bias
    elif to == "layer":
        y = standardized(x, per_sample, eps)
    elif to == "instance":
        y = standardized(x, per_sample[1:], eps)
    else:
        y = np.concatenate([standardized(part, per_sample, eps) for part in np.split(x, groups, axis=1)], axis=1)
    shape = (1, C, *[1] * (x.ndim - 2))
    return y * weight.reshape(shape) + bias.reshape(shape)


def options_for(to):
    return SILENT if to in ("noisy", "noise") else {}


def random(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.3


def test_the_docstring_lists_every_kind():
    (line,) = re.findall(r"\n +to: (.*)\.\n", swap_norms.__doc__)
    assert tuple(re.split(", | or ", line)) == NORM_NAMES


@pytest.mark.parametrize("name", NORM_NAMES)
def test_a_kind_has_the_parameters_and_options_that_it_states(name):
    kind, layer = NORM_KINDS[name], make_norm(name, C, dim=2)
    assert (getattr(layer, "weight", None) is not None) == kind.has_weight
    assert (getattr(layer, "bias", None) is not None) == kind.has_bias
    assert hasattr(layer, "momentum") == kind.takes_momentum
    assert hasattr(layer, "running_var") == kind.takes_running
    assert any(isinstance(module, CovariateNoise) for module in layer.modules()) == kind.takes_noise
    if kind.takes_groups:
        assert make_norm(name, C, dim=2, groups=2).num_groups == 2


@pytest.mark.parametrize("to", NORM_NAMES)
@pytest.mark.parametrize("source", [*SECOND, *LAST])
def test_every_source_to_every_target_is_that_normalizer(source, to):
    make, shape = (SECOND | LAST)[source]
    model = nn.Sequential(shaken(make()))
    model.register_parameter("other", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    old = model[0]
    x = random(shape)
    if source in LAST and to == "instance":
        with pytest.raises(ValueError, match="0 normalizes the last dimension"):
            swap_norms(model, to)
        assert model[0] is old
        return
    (swap,) = swap_norms(model, to, **options_for(to))

    weight = getattr(old, "weight", None)
    bias = getattr(old, "bias", None)
    w = np.ones(C) if weight is None else weight.detach().numpy()
    b = np.zeros(C) if bias is None else bias.detach().numpy()
    # eps is added to a variance in every kind but l_p; the default of torch's RMSNorm goes to another RMSNorm alone.
    # Groups stay those there were.
    eps = 1e-5 if isinstance(old, LpNorm2d) else getattr(old, "eps", None) or 1e-5
    if to == "rms" and isinstance(old, nn.RMSNorm) and old.eps is None:
        eps = torch.finfo(x.dtype).eps
    groups = 2 if type(old) is nn.GroupNorm else C // 2
    each = source == "LayerNorm2d" and to in ("layer", "group", "rms")
    rows = x.movedim(1, -1).reshape(-1, C) if each else x.reshape(-1, C) if source in LAST else x
    expected = formula(to, rows.numpy(), w, b, eps, groups)
    expected = np.moveaxis(expected.reshape(3, 2, C, C), -1, 1) if each else expected.reshape(shape)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, **CLOSE)

    new = core(model[0])
    affine = {"none": (), "noise": (), "rms": ("weight",)}.get(to, ("weight", "bias"))
    for key in affine:
        if getattr(old, key, None) is not None:
            assert getattr(new, key) is getattr(old, key)
            assert key in swap.kept
    if weight is None or bias is None:
        assert getattr(new, "bias", None) is None
    assert {name for name, _ in new.named_parameters()} <= {name for name, _ in old.named_parameters()}
    name = type(new).__name__
    if source in LAST and to != "none":
        name = f"LastDim({name})"
    assert (swap.name, swap.old, swap.new) == ("0", type(old).__name__, f"EachPosition({name})" if each else name)


def test_running_statistics_stay_between_batch_and_noisy_and_only_there():
    model = nn.Sequential(nn.BatchNorm2d(C, momentum=0.3, eps=0.1))
    model(random(SPACE[2], dtype=torch.float32))
    first = model[0]
    everything = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert swap_norms(model, "noisy", seed=3) == [Swap("0", "BatchNorm2d", "NoisyBatchNorm2d", everything)]
    assert swap_norms(model, "batch") == [Swap("0", "NoisyBatchNorm2d", "BatchNorm2d", everything)]
    for key in everything:
        assert getattr(model[0], key) is getattr(first, key)
    assert (model[0].momentum, model[0].eps) == (0.3, 0.1)
    assert swap_norms(model, "l1") == [Swap("0", "BatchNorm2d", "LpNorm2d", ("weight", "bias"))]
    assert model[0].running_mean is not first.running_mean
    assert (model[0].momentum, model[0].eps) == (0.3, 1e-5)
    assert model[0].num_batches_tracked == 0
    swap_norms(model, "batch")
    assert model[0].weight is first.weight
    assert model[0].momentum == 0.3


def test_last_dim_can_be_swapped_again_and_is_named_by_what_it_holds():
    model = nn.Sequential(shaken(nn.LayerNorm(C)))
    weight, x = model[0].weight, random((4, 3, C))
    before = model(x)
    swap_norms(model, "batch")
    (swap,) = swap_norms(model, "l1")
    assert (swap.old, swap.new) == ("LastDim(BatchNorm1d)", "LastDim(LpNorm1d)")
    with pytest.raises(ValueError, match="last dimension"):
        swap_norms(model, "instance")
    swap_norms(model, "layer")
    assert model[0].norm.weight is weight
    torch.testing.assert_close(model(x), before, **CLOSE)
    assert swap_norms(model, "none")[0].new == "Identity"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("to", NORM_NAMES)
@pytest.mark.parametrize("affine", [True, False])
def test_dtype_is_that_of_the_layer_or_of_the_model(to, dtype, affine):
    model = nn.Sequential(nn.Conv2d(2, C, 1), nn.GroupNorm(2, C, affine=affine)).to(dtype)
    swap_norms(model, to)
    floats = [t for t in model[1].state_dict().values() if t.is_floating_point()]
    assert all(t.dtype == dtype for t in floats)
    assert model(random((3, 2, 4, 4), dtype=dtype)).dtype == dtype


def test_a_layer_in_float32_inside_a_bfloat16_model_stays_so():
    model = nn.Sequential(nn.Conv2d(2, C, 1).bfloat16(), nn.BatchNorm2d(C))
    swap_norms(model, "l2")
    assert model[1].running_norm.dtype == torch.float32


@pytest.mark.parametrize("to", NORM_NAMES)
def test_device_is_kept(to):
    model = nn.Sequential(nn.Conv2d(2, C, 1), nn.BatchNorm2d(C)).to("meta")
    swap_norms(model, to)
    assert all(t.device.type == "meta" for t in model.state_dict().values())


@pytest.mark.parametrize("to", NORM_NAMES)
def test_each_layer_keeps_its_training_flag_and_requires_grad(to):
    model = nn.Sequential(nn.BatchNorm2d(C), nn.BatchNorm2d(C), nn.Sequential(nn.LayerNorm(C)))
    model[1].eval().requires_grad_(False)
    model[2].eval()
    modes = [model.training, *(m.training for m in (model[0], model[1], model[2], model[2][0]))]
    if to == "instance":
        model[2][0] = nn.GroupNorm(1, C).eval()
    swap_norms(model, to)
    assert [model.training, *(m.training for m in (model[0], model[1], model[2], model[2][0]))] == modes
    assert all(module.training == top.training for top in model for module in top.modules())
    assert not any(p.requires_grad for p in model[1].parameters())


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.ModuleDict({"conv": nn.Conv2d(2, C, 3), "norm": nn.BatchNorm2d(C)})
        self.block = nn.Sequential(nn.Sequential(nn.Conv2d(C, C, 1), nn.GroupNorm(3, C)), nn.ReLU())
        self.again = self.first["norm"]

    def forward(self, x):
        h = self.again(self.first["norm"](self.first["conv"](x)))
        return self.block(h)


def test_nested_modules_and_a_shared_norm():
    model = Nested()
    shared = model.again
    swaps = swap_norms(model, "l2")
    assert [(s.name, s.old, s.new) for s in swaps] == [
        ("first.norm", "BatchNorm2d", "LpNorm2d"),
        ("block.0.1", "GroupNorm", "LpNormNd"),
        ("again", "BatchNorm2d", "LpNorm2d"),
    ]
    assert model.again is model.first["norm"]
    assert model.again.weight is shared.weight
    model(random((2, 2, 5, 5), dtype=torch.float32))
    assert model.again.num_batches_tracked == 2
    assert [type(child).__name__ for child in model.block[0]] == ["Conv2d", "LpNormNd"]


def test_order_of_sequential_children_and_state_dict_names():
    model = nn.Sequential(nn.Linear(3, C), nn.BatchNorm1d(C), nn.ReLU(), nn.Linear(C, 2), nn.BatchNorm1d(2))
    names = list(model.state_dict())
    swap_norms(model, "batch")
    assert list(model.state_dict()) == names
    assert [type(layer).__name__ for layer in model] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert isinstance(model[1], BatchNorm1d)


def test_none_equals_the_network_without():
    model = Nested().double()
    x = random((2, 2, 5, 5))
    expected = torch.relu(model.block[0][0](model.first["conv"](x)))
    swap_norms(model, "none")
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("refusing", "to", "message"),
    [
        (lambda: nn.LazyBatchNorm2d(), "batch", "bad is a LazyBatchNorm2d.*Run one batch first"),
        (lambda: nn.LayerNorm((2, C)), "batch", r"bad normalizes over the last 2 dimensions \(2, 6\)"),
        (lambda: nn.RMSNorm((2, C)), "noise", r"bad normalizes over the last 2 dimensions"),
        (lambda: nn.LayerNorm(C), "instance", "bad normalizes the last dimension"),
    ],
)
def test_no_partial_effect_when_one_layer_refuses(refusing, to, message):
    model = nn.Sequential()
    model.good, model.bad, model.other = nn.BatchNorm2d(C), refusing(), nn.BatchNorm2d(C)
    before = [(name, id(module), type(module)) for name, module in model.named_modules()]
    state = copy.deepcopy(model.good.state_dict())
    with pytest.raises(ValueError, match=message):
        swap_norms(model, to)
    assert [(name, id(module), type(module)) for name, module in model.named_modules()] == before
    assert all(torch.equal(model.good.state_dict()[key], value) for key, value in state.items())


def test_no_partial_effect_of_an_option_that_one_layer_does_not_have():
    model = nn.Sequential(nn.BatchNorm1d(C))
    old = model[0]
    with pytest.raises(TypeError, match="groups"):
        swap_norms(model, "batch", groups=3)
    assert model[0] is old


def test_multi_dimensional_layer_norm_can_be_taken_out():
    model = nn.Sequential(nn.LayerNorm((2, C)))
    swap_norms(model, "none")
    assert isinstance(model[0], nn.Identity)


@pytest.mark.parametrize(("wrong", "nearest"), [("BatchNorm", "batch"), ("l_1", "l1"), ("Instance", "instance")])
def test_unknown_name_lists_all_and_offers_the_nearest(wrong, nearest):
    model = nn.Sequential(nn.BatchNorm1d(C))
    with pytest.raises(ValueError, match=f"Did you mean '{nearest}'") as error:
        swap_norms(model, wrong)
    assert all(name in str(error.value) for name in NORM_NAMES)
    assert wrong in str(error.value)
    assert type(model[0]) is nn.BatchNorm1d


@pytest.mark.parametrize("root", [lambda: nn.BatchNorm1d(C), lambda: RMSNorm(C), lambda: LastDim(nn.GroupNorm(1, C))])
def test_a_root_that_is_a_norm_is_refused(root):
    with pytest.raises(ValueError, match="itself a layer.*nn.Sequential"):
        swap_norms(root(), "l1")


def test_a_model_without_norms_is_refused():
    with pytest.raises(ValueError, match="Sequential has no normalizer to swap"):
        swap_norms(nn.Sequential(nn.Linear(2, 2)), "batch")


def test_an_optimizer_built_before_goes_on():
    model = nn.Sequential(nn.Linear(3, C), nn.BatchNorm1d(C), nn.Linear(C, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = random((8, 3), dtype=torch.float32)
    for to in ("batch", "l1", "group", "none"):
        weight = None if to == "none" else model[1].weight
        before = None if to == "none" else weight.detach().clone()
        swap_norms(model, to)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        if to != "none":
            assert model[1].weight is weight
            assert not torch.equal(weight, before)


def test_options_pass_through():
    model = nn.Sequential(nn.BatchNorm2d(12), nn.BatchNorm2d(8))
    swap_norms(model, "group", groups=4, eps=0.25)
    assert [(layer.num_groups, layer.eps) for layer in model] == [(4, 0.25), (4, 0.25)]
    swap_norms(model, "l1", centered=True, momentum=None)
    assert [(layer.centered, layer.momentum) for layer in model] == [(True, None)] * 2
    swap_norms(model, "batch", sync=True, track_running_stats=False, affine=False)
    assert [(layer.sync, layer.running_mean, layer.weight) for layer in model] == [(True, None, None)] * 2


@pytest.mark.parametrize("source", [nn.SyncBatchNorm(C), BatchNorm2d(C, sync=True)])
def test_statistics_over_processes_stay_so(source):
    model = nn.Sequential(source)
    swap_norms(model, "noisy")
    swap_norms(model, "batch")
    assert model[0].sync


@pytest.mark.parametrize("to", ["noisy", "noise"])
def test_one_seed_gives_every_layer_its_own_noise_reproducibly(to):
    def states():
        model = nn.Sequential(nn.BatchNorm1d(C), nn.BatchNorm1d(C), nn.BatchNorm1d(C))
        swap_norms(model, to, seed=5)
        return [key[1].tolist() for key in model.state_dict().items() if key[0].endswith("noise_state")]

    assert states() == states()
    assert len({state[0] for state in states()}) == 3


def test_strength_of_the_noise_stays_between_noisy_and_noise():
    strength = {"n_mu": 0.2, "n_sigma": 1.5, "r_mu": 0.3, "r_sigma": 0.4}
    model = nn.Sequential(NoisyBatchNorm2d(C, seed=0, **strength))
    swap_norms(model, "noise")
    assert model[0].constants == strength
    swap_norms(model, "noisy", n_mu=0.1)
    assert model[0].noise.constants == strength | {"n_mu": 0.1}


def test_source_without_running_statistics_gets_none():
    model = nn.Sequential(nn.BatchNorm1d(C, track_running_stats=False))
    swap_norms(model, "noisy")
    assert model[0].running_mean is None


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (2, 1), (6, 3), (7, 1), (10, 5), (48, 24), (64, 32), (96, 32)]
)
def test_group_has_as_many_groups_as_divide_with_two_channels_or_more(channels, groups):
    assert make_norm("group", channels, dim=1).num_groups == groups


@pytest.mark.parametrize("channels", [2, 10, 16, 31, 32, 100])
def test_group_without_space_is_not_constant(channels):
    y = make_norm("group", channels, dim=1)(random((4, channels), dtype=torch.float32))
    assert y.abs().max() > 0.5


@pytest.mark.parametrize("shape", [(4, C), (4, C, 1), (4, C, 1, 1)])
def test_instance_refuses_one_value_per_channel_and_sample(shape):
    with pytest.raises(ValueError, match="InstanceNorm takes statistics over space"):
        InstanceNorm(C)(torch.zeros(shape))


@pytest.mark.parametrize("name", sorted(set(NORM_NAMES) - {"none", "noise"}))
@pytest.mark.parametrize("dim", [1, 2, 3, None])
def test_gamma_is_the_initial_scale(name, dim):
    layer = make_norm(name, C, dim=dim, gamma=0.25)
    assert torch.equal(layer.weight, torch.full((C,), 0.25))


def test_rms_norm_in_half_precision_sums_in_float32():
    # 64 squares of 250 are 4e6, beyond float16's 65504.
    y = RMSNorm(64)(torch.full((1, 64), 250.0, dtype=torch.float16))
    torch.testing.assert_close(y, torch.ones(1, 64, dtype=torch.float16))


@pytest.mark.parametrize("to", ["none", "batch", "rms", "l1", "layer"])
def test_transformer_layers_use_the_new_norms_in_eval_too(to):
    """Its fused eval path would go on computing LayerNorm."""
    layer = shaken(nn.TransformerEncoderLayer(C, nhead=2, dim_feedforward=8, batch_first=True))
    layer.eval()
    swap_norms(layer, to)
    if to in ("batch", "l1"):
        layer.train()(random((4, 3, C)))
    layer.eval()
    x = random((4, 3, C))
    attended = layer.norm1(x + layer.self_attn(x, x, x, need_weights=False)[0])
    expected = layer.norm2(attended + layer.linear2(torch.relu(layer.linear1(attended))))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, **CLOSE)


def test_a_layer_held_in_a_plain_list_is_refused():
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn0 = nn.BatchNorm1d(C)
            self.kept = [self.bn0]

    model = Old()
    with pytest.raises(ValueError, match="bn0 is also held in the plain container kept"):
        swap_norms(model, "none")
    assert type(model.bn0) is nn.BatchNorm1d


def test_options_that_a_layer_does_not_take_are_named():
    model = nn.Sequential(nn.BatchNorm1d(C))
    with pytest.raises(TypeError, match=r"'rms' does not take all of the options centered"):
        swap_norms(model, "rms", centered=True)
    with pytest.raises(TypeError, match="'none' has no layer to give options to; got eps"):
        swap_norms(model, "none", eps=0.1)
    assert type(model[0]) is nn.BatchNorm1d
