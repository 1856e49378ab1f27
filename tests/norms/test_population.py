"""Population statistics against the loops of the reference; nothing else may move."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import reference
from normscope.norms import (
    BatchNorm1d,
    BatchNorm2d,
    LpNorm1d,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    use_population_statistics,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = {"1d": [(4, 3), (4, 3)], "unequal": [(5, 3), (2, 3), (7, 3)], "conv": [(3, 3, 2, 2), (1, 3, 2, 3)]}


def batches(shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) * 2 + 1 for shape in shapes]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("ours", [None, "plain", "noisy"])
def test_against_the_loops(kind, ours):
    two = kind == "conv"
    cls = {
        None: nn.BatchNorm2d if two else nn.BatchNorm1d,
        "plain": BatchNorm2d if two else BatchNorm1d,
        "noisy": NoisyBatchNorm2d if two else NoisyBatchNorm1d,
    }[ours]
    layer = cls(3, dtype=torch.float64)
    data = batches(SHAPES[kind])
    found = use_population_statistics(layer, data)
    mean, var = reference.population_statistics([x.numpy() for x in data])
    for (e, v), name in ((found[""], "returned"), ((layer.running_mean, layer.running_var), "kept")):
        np.testing.assert_allclose(e.numpy(), mean, err_msg=name, **CLOSE)
        np.testing.assert_allclose(v.numpy(), var, err_msg=name, **CLOSE)


def test_the_second_of_two_layers_sees_batches_normalized_by_their_own_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2), BatchNorm1d(2)).double()
    data = batches(SHAPES["unequal"])
    hidden = []
    for x in data:
        y, _, _ = reference.batch_norm(x.numpy(), np.ones(3), np.zeros(3), 1e-5)
        hidden.append(np.maximum(y, 0) @ model[2].weight.detach().numpy().T + model[2].bias.detach().numpy())
    found = use_population_statistics(model, data)
    assert list(found) == ["0", "3"]
    for name, inputs in (("0", [x.numpy() for x in data]), ("3", hidden)):
        mean, var = reference.population_statistics(inputs)
        np.testing.assert_allclose(found[name][0].numpy(), mean, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(found[name][1].numpy(), var, rtol=1e-11, atol=1e-11)


class Reassigns(nn.Module):
    """A buffer that is replaced and not written to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x


def zoo():
    model = nn.Sequential(
        nn.BatchNorm1d(3), NoisyBatchNorm1d(3, seed=4), LpNorm1d(3, 1), Reassigns(), nn.BatchNorm1d(3), nn.Dropout(0.0)
    ).double()
    model(batches([(6, 3)])[0])
    model.eval()
    model[2].train()
    model[4].requires_grad_(False)
    return model


def test_everything_else_is_as_before():
    model = zoo()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    buffers = {name: id(buffer) for name, buffer in model.named_buffers()}
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    use_population_statistics(model, batches([(5, 3), (3, 3)]))
    set_anew = {f"{i}.running_{what}" for i in (0, 1, 4) for what in ("mean", "var")}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set_anew
    assert [module.training for module in model.modules()] == modes
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == buffers
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())


def raises_half_way():
    yield batches([(5, 3)])[0]
    raise OSError("disk")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (raises_half_way, OSError),
        (lambda: [*batches([(5, 3)]), torch.zeros(5, 4, dtype=torch.float64)], (ValueError, RuntimeError)),
        (lambda: [*batches([(5, 3)]), torch.zeros(1, 3, dtype=torch.float64)], ValueError),
        (list, ValueError),
    ],
    ids=["loader", "shape", "one value", "empty"],
)
def test_if_the_pass_raises_all_is_as_before(source, error):
    model = zoo()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    with pytest.raises(error):
        use_population_statistics(model, source())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_empty_loader_says_what_to_do():
    with pytest.raises(ValueError, match="at least one batch.*'1' saw none.*not empty or used up"):
        use_population_statistics(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)), iter(()))


def test_batches_of_one_value_have_no_variance():
    layer = BatchNorm1d(2, sync=True)
    with pytest.raises(ValueError, match="more than one value per channel"):
        use_population_statistics(layer, [torch.ones(1, 2), torch.zeros(1, 2)])
    assert torch.equal(layer.running_var, torch.ones(2))


@pytest.mark.parametrize("cls", [nn.BatchNorm1d, BatchNorm1d])
def test_an_empty_batch_counts_nothing(cls):
    layer, data = cls(3, dtype=torch.float64), batches([(4, 3), (0, 3), (3, 3)])
    use_population_statistics(layer, data)
    mean, var = reference.population_statistics([data[0].numpy(), data[2].numpy()])
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, **CLOSE)
    np.testing.assert_allclose(layer.running_var.numpy(), var, **CLOSE)


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def forward(self, left, right):
        return self.norm(input=left + right)


def test_dicts_are_keyword_arguments_also_of_the_layer():
    model, data = ByKeyword(), batches([(4, 3), (6, 3)])
    use_population_statistics(model, [{"left": x, "right": torch.ones_like(x)} for x in data])
    mean, _ = reference.population_statistics([x.numpy() + 1 for x in data])
    np.testing.assert_allclose(model.norm.running_mean.numpy(), mean, **CLOSE)


def test_a_loader_of_pairs_and_a_layer_used_twice():
    layer = nn.BatchNorm1d(3, dtype=torch.float64)
    data = batches([(4, 3), (6, 3)])
    use_population_statistics(nn.Sequential(layer, layer), [(x, torch.zeros(len(x))) for x in data])
    twice = [y for x in data for y in (x.numpy(), reference.batch_norm(x.numpy(), np.ones(3), np.zeros(3), 1e-5)[0])]
    mean, var = reference.population_statistics(twice)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, **CLOSE)
    np.testing.assert_allclose(layer.running_var.numpy(), var, **CLOSE)


def test_nothing_to_set_is_an_error():
    with pytest.raises(ValueError, match="Sequential has no BatchNorm that keeps running statistics"):
        use_population_statistics(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), batches([(4, 3)]))


def test_half_precision_statistics_are_summed_in_full():
    layer = BatchNorm1d(1, dtype=torch.bfloat16)
    x = torch.full((512, 1), 1.0, dtype=torch.bfloat16)
    x[256:] = 3.0
    found = use_population_statistics(layer, [x])
    assert found[""][0].item() == 2.0
    assert found[""][1].item() == pytest.approx(512 / 511)
