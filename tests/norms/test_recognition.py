"""Foreign normalizers: exchanged for what they compute, or left with a reason; asked without being touched."""

import copy
import random

import foreign
import numpy as np
import pytest
import torch
from torch import nn

from normscope.norms import NORM_NAMES, swap_norms
from normscope.norms.find_norms import find_norms
from normscope.norms.wrappers import EachPosition, Followed, LastDim, OwnScale, core

C = 12
LAST, SECOND = (2, 5, C), (3, C, 4, 5)
# name: how it is built, an input it takes, the kind it is, a part of what it is said to compute
TAKEN = {
    "llama": (foreign.LlamaRMSNorm, LAST, "rms", "RMSNorm over the last dimension, eps=1e-06"),
    "t5": (lambda c: foreign.LlamaRMSNorm(c, 1e-5), LAST, "rms", "eps=1e-05"),
    "bert's eps": (lambda c: foreign.LlamaRMSNorm(c, 1e-12), LAST, "rms", "eps=1e-12"),
    "gemma": (foreign.GemmaRMSNorm, LAST, "rms", "1 + weight"),
    "unit length": (foreign.UnitLengthNorm, LAST, "rms", "RMSNorm over the last dimension"),
    "unit length, no weight": (lambda c: foreign.UnitLengthNorm(c, weights=False), LAST, "rms", "RMSNorm"),
    "one weight": (foreign.ScaleNorm, LAST, "rms", "RMSNorm"),
    "rms and a bias": (foreign.RMSNormWithBias, LAST, "rms", "RMSNorm"),
    "layer without a weight": (foreign.BareLayerNorm, LAST, "layer", "LayerNorm over the last dimension"),
    "layer without a bias": (foreign.BiasFreeLayerNorm, LAST, "layer", "LayerNorm over the last dimension"),
    "layer, 1 + weight": (foreign.LayerNorm1P, LAST, "layer", "1 + weight"),
    "layer 2d by hand": (foreign.HandLayerNorm2d, SECOND, "layer", "over the channels of each position, eps=1e-06"),
    "layer 2d, (1, C, 1, 1)": (foreign.ChannelLayerNorm, SECOND, "layer", "over the channels of each position"),
    "rms 2d": (foreign.RMSNorm2d, SECOND, "rms", "over the channels of each position"),
    "group by hand": (foreign.HandGroupNorm, SECOND, "group", "GroupNorm over each sample, eps=0.001"),
    "instance by hand": (foreign.HandInstanceNorm, SECOND, "instance", "InstanceNorm over each sample"),
    "convnext": (foreign.LayerNorm2d, SECOND, "layer", "GroupNorm at each position"),
    "group 1": (foreign.GroupNorm1, SECOND, "layer", "GroupNorm"),
    "layer 2d and act": (foreign.LayerNormAct2d, SECOND, "layer", "then GELU"),
    "batch and act": (foreign.BatchNormAct2d, SECOND, "batch", "BatchNorm2d, then Dropout, then ReLU"),
}
LEFT = {
    "another input": (foreign.GatedRMSNorm, "its forward takes 'gate' besides its input"),
    "unbiased": (foreign.UnbiasedLayerNorm, "LayerNorm over the last dimension times 0.957"),
    "eps outside": (foreign.OutsideEps, "of large values only: its eps is not added to the variance"),
    "any size": (foreign.L2Norm, "is no normalization known here"),
    "response": (foreign.GlobalResponseNorm, "is no normalization known here"),
    "batch by hand": (foreign.HandBatchNorm, "a BatchNorm with code of its own"),
    "stays frozen": (foreign.StaysFrozen, "StaysFrozen computes is not what BatchNorm2d computes"),
    "frozen": (foreign.FrozenBatchNorm2d, "scales and shifts each channel by constants"),
    "both layouts": (foreign.EitherLayerNorm, "channels last in inputs of some rank and second in others"),
}


def shaken(layer):
    """Weights that are not ones and zeros."""
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draws) + 0.5)
    return layer


def inputs(shape, scale=1.0):
    return scale * (torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 0.3)


@pytest.mark.parametrize("scale", [100.0, 1.0, 1e-2])
@pytest.mark.parametrize("name", TAKEN)
def test_the_same_kind_gives_what_the_layer_gave(name, scale):
    make, shape, kind, said = TAKEN[name]
    model = nn.Sequential(shaken(make(C)))
    old = copy.deepcopy(model)
    parameters = dict(model[0].named_parameters())
    swaps = swap_norms(model, kind, **({"groups": 3} if kind == "group" else {}))
    assert swaps.left == {}
    assert said in swaps[0].taken_for
    for training in (True, False):
        old.train(training)
        model.train(training)
        # float32: some ten values summed in two ways.
        torch.testing.assert_close(model(inputs(shape, scale)), old(inputs(shape, scale)), rtol=1e-5, atol=1e-5)
    assert {id(p) for p in model.parameters()} == {id(p) for p in parameters.values()}
    assert set(swaps[0].kept) - {"running_mean", "running_var", "num_batches_tracked"} == set(parameters)


@pytest.mark.parametrize("to", NORM_NAMES)
@pytest.mark.parametrize(
    "name", ["llama", "gemma", "one weight", "convnext", "rms 2d", "group by hand", "batch and act"]
)
def test_every_target_trains_on_and_can_be_swapped_again(name, to):
    make, shape, kind, _ = TAKEN[name]
    if to == "instance" and shape == LAST:
        return
    model = nn.Sequential(shaken(make(C)))
    own = set(map(id, model.parameters()))
    swap_norms(model, to)
    y = model(inputs(shape))
    assert y.shape == shape
    assert y.isfinite().all()
    assert {id(p) for p in model.parameters()} <= own
    if to in ("batch", "l1"):
        y.square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        swap_norms(model, kind)
        assert model(inputs(shape)).isfinite().all()


def test_the_scale_of_1_plus_weight_stays_that():
    model = nn.Sequential(foreign.GemmaRMSNorm(C))
    nn.init.constant_(model[0].weight, 0.5)
    swap_norms(model, "batch")
    assert [type(part) for part in (model[0], model[0].norm)] == [LastDim, OwnScale]
    expected = 1.5 * nn.functional.batch_norm(inputs(LAST).reshape(-1, C), None, None, training=True, eps=1e-6)
    torch.testing.assert_close(model(inputs(LAST)), expected.view(LAST))


def test_noise_comes_after_a_scale_of_its_own():
    silent = {"n_mu": 0.0, "n_sigma": 1.0, "r_mu": 0.0, "r_sigma": 0.0}
    model = nn.Sequential(foreign.GemmaRMSNorm(C))
    swap_norms(model, "noisy", seed=1, **(silent | {"n_mu": 2.0}))
    shift = model(inputs(LAST)).reshape(-1, C).mean(0)
    nn.init.constant_(model[0].norm.weight, 99.0)
    model[0].norm.noise.reset_parameters()
    # The mean of a normalized channel is the noise alone, whatever the scale.
    torch.testing.assert_close(model(inputs(LAST)).reshape(-1, C).mean(0), shift, rtol=1e-3, atol=1e-3)
    assert shift.abs().max() > 0.5


def test_an_activation_inside_stays_and_does_not_write_into_the_input():
    model = nn.Sequential(foreign.BatchNormAct2d(C))
    act = model[0].act
    swap_norms(model, "none")
    assert isinstance(model[0], Followed)
    assert model[0].act is act
    x = inputs(SECOND)
    before = x.clone()
    assert torch.equal(model(x), x.relu())
    assert torch.equal(x, before)


@pytest.mark.parametrize("to", ["none", "noise"])
def test_a_taken_out_layer_gives_a_new_tensor_as_it_did(to):
    model = nn.Sequential(nn.BatchNorm1d(C), nn.ReLU(inplace=True)).eval()
    swap_norms(model, to)
    x = inputs((4, C))
    before = x.clone()
    model(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma", "convnext", "rms 2d", "batch and act"])
def test_new_layers_are_in_the_mode_of_the_old_and_children_in_their_own(name, training):
    model = nn.Sequential(TAKEN[name][0](C)).train()
    model[0].train(training)
    modes = dict.fromkeys(model[0].children(), not training)
    for child, mode in modes.items():
        child.train(mode)
    swap_norms(model, "batch")
    assert all(module.training == modes.get(module, training) for module in model[0].modules())


def test_a_guard_against_zero_is_no_eps_for_a_batch():
    model = nn.Sequential(foreign.UnitLengthNorm(C))
    x = inputs(LAST)
    swap_norms(model, "rms")
    assert core(model[0]).eps < 1e-20
    assert torch.equal(model(0 * x), 0 * x)
    swap_norms(model, "batch")
    assert core(model[0]).eps == 1e-5


@pytest.mark.parametrize("to", ["batch", "layer", "none"])
def test_a_forward_can_still_ask_for_the_dtype_of_the_weight(to):
    model = nn.Sequential(foreign.LlamaRMSNorm(C)).bfloat16()
    swap_norms(model, to)
    assert model[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_named_with_the_reason(name):
    make, reason = LEFT[name]
    model = nn.Sequential(make(C), nn.BatchNorm2d(C))
    left = model[0]
    with pytest.warns(UserWarning, match="swap_norms left 1 of 2 layers as they were: 0 ") as said:
        swaps = swap_norms(model, "layer")
    assert model[0] is left
    assert [swap.name for swap in swaps] == ["1"]
    assert [*swaps.left] == ["0"]
    assert reason in swaps.left["0"]
    assert reason in str(said[0].message)
    assert reason in str(swaps)
    assert "1: BatchNorm2d -> GroupNorm, keeps weight, bias" in str(swaps)


def test_a_normalizer_of_another_name_that_cannot_be_taken_is_named_too():
    class Gate(foreign.GatedRMSNorm):
        pass

    with pytest.raises(ValueError, match="0 .Gate: its forward takes 'gate' besides its input"):
        swap_norms(nn.Sequential(Gate(C)), "batch")


def test_where_all_are_left_the_error_says_why_and_not_how_to_build_a_model():
    model = nn.Sequential(foreign.GatedRMSNorm(C), foreign.GatedRMSNorm(C), nn.Linear(C, C))
    with pytest.raises(ValueError, match="Examined and left: 0 and 1 more .*its forward takes 'gate'"):
        swap_norms(model, "batch")
    with pytest.raises(ValueError, match="no normalizer to swap: no module in it") as error:
        swap_norms(nn.Sequential(nn.Linear(C, C)), "batch")
    assert "norm=" not in str(error.value)


def test_what_is_no_normalizer_is_not_named():
    class DropPath(nn.Module):
        p = 0.5

        def forward(self, x):
            return x

    model = nn.Sequential(foreign.LayerScale(C), DropPath(), nn.GELU(), nn.PReLU(C), nn.LayerNorm(C))
    assert [*swap_norms(model, "rms")] == swap_norms(nn.Sequential(*model[:4], nn.LayerNorm(C)), "rms")
    found = find_norms(model)
    assert ([*found.layers], found.left) == (["4"], {})


def test_torchs_own_normalizer_without_a_counterpart_is_named():
    with pytest.raises(ValueError, match="LocalResponseNorm"):
        swap_norms(nn.Sequential(nn.LocalResponseNorm(2)), "batch")


def test_a_parametrized_layer_is_left():
    class Double(nn.Module):
        def forward(self, w):
            return 2 * w

    model = nn.Sequential(nn.LayerNorm(C), nn.LayerNorm(C))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Double())
    with pytest.warns(UserWarning, match="computed from others"):
        swaps = swap_norms(model, "batch")
    assert [*swaps.left] == ["0"]


def test_inner_layers_of_a_wrapper_by_other_people_are_swapped():
    class LayerNorm(nn.Module):
        """torch's without a weight, and a weight."""

        def __init__(self):
            super().__init__()
            self.ln, self.gamma = nn.LayerNorm(C, elementwise_affine=False), nn.Parameter(torch.ones(C))

        def forward(self, x):
            return self.ln(x) * self.gamma

    model = nn.Sequential(LayerNorm())
    assert [swap.name for swap in swap_norms(model, "batch")] == ["0.ln"]
    assert len([*model.parameters()]) == 1


class Hostile(foreign.LlamaRMSNorm):
    """Counts its calls, draws, keeps what it saw."""

    def __init__(self, size):
        super().__init__(size)
        self.calls, self.seen = 0, []
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator()

    def forward(self, hidden):
        self.calls += 1
        self.seen.append(hidden)
        self.count += 1
        torch.rand(1)
        torch.rand(1, generator=self.generator)
        random.random()
        np.random.rand()  # noqa: NPY002
        return super().forward(hidden)


def test_a_probe_leaves_no_trace():
    model = nn.Sequential(Hostile(C), nn.Sequential(foreign.BatchNormAct2d(C, drop=0.3))).eval()
    model[1].train()
    called = []
    model[0].register_forward_hook(lambda *_: called.append(1))
    state = copy.deepcopy(model.state_dict())
    tensors = [*map(id, (*model.parameters(), *model.buffers()))]
    generators = (torch.get_rng_state(), model[0].generator.get_state(), random.getstate(), np.random.get_state()[1])  # noqa: NPY002
    assert [*find_norms(model).twins] == [model[0], model[1][0]]
    assert (model[0].calls, model[0].seen, called) == (0, [], [])
    assert [*map(id, (*model.parameters(), *model.buffers()))] == tensors
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == [False, False, *[True] * 4]
    after = (torch.get_rng_state(), model[0].generator.get_state(), random.getstate(), np.random.get_state()[1])  # noqa: NPY002
    assert all(
        np.array_equal(a, b) if not isinstance(a, tuple) else a == b for a, b in zip(generators, after, strict=True)
    )
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_that_cannot_be_copied_is_left():
    class Locked(foreign.LlamaRMSNorm):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    model = nn.Sequential(Locked(C), nn.LayerNorm(C))
    with pytest.warns(UserWarning, match="cannot be copied for a probe .RuntimeError: no copies"):
        swap_norms(model, "rms")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    model = nn.Sequential(foreign.LlamaRMSNorm(C), foreign.GemmaRMSNorm(C)).to(dtype)
    x = inputs(LAST).to(dtype)
    before = model(x)
    swap_norms(model, "rms")
    assert model(x).dtype == dtype
    torch.testing.assert_close(model(x), before, rtol=2e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_statistics_have_the_dtype_of_a_scale_of_another_form():
    model = nn.Sequential(nn.Linear(C, C).bfloat16(), foreign.GemmaRMSNorm(C))
    swap_norms(model, "batch")
    assert core(model[1]).running_mean.dtype == torch.float32


def test_layers_on_the_meta_device_are_left_by_name():
    with torch.device("meta"):
        model = nn.Sequential(foreign.LlamaRMSNorm(C), nn.LayerNorm(C))
    with pytest.warns(UserWarning, match="cannot be copied for a probe"):
        swap_norms(model, "rms")


def test_a_root_that_computes_a_norm_is_refused():
    with pytest.raises(ValueError, match="itself a layer"):
        swap_norms(foreign.LlamaRMSNorm(C), "rms")


def test_one_layer_in_two_places_stays_one():
    norm = foreign.LlamaRMSNorm(C)
    model = nn.Sequential(norm, nn.Linear(C, C), norm)
    swaps = swap_norms(model, "batch")
    assert [swap.name for swap in swaps] == ["0", "2"]
    assert model[0] is model[2]
    assert core(model[0]).weight is norm.weight


def test_positions_and_the_whole_sample_are_told_apart():
    layer, group = foreign.HandLayerNorm2d(C), foreign.HandGroupNorm(C, groups=1)
    found = find_norms(nn.Sequential(layer, group))
    assert isinstance(found.twins[layer], EachPosition)
    assert isinstance(found.twins[group], nn.GroupNorm)


def test_language_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=20, max_position_embeddings=16)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(12).view(2, 6)
    before = model(input_ids=tokens).logits
    swaps = swap_norms(model, "rms")
    assert (len(swaps), swaps.left) == (3, {})
    torch.testing.assert_close(model(input_ids=tokens).logits, before)
    swap_norms(model.train(), "batch")
    assert model(input_ids=tokens).logits.isfinite().all()
