"""Batch statistics recorded call by call, against torch's own running statistics and population statistics."""

import copy

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.diagnosis.batch_statistics import (
    population,
    recording,
    set_statistics,
    tracking_layers,
    with_momentum,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))


def inputs(sizes=(4, 4, 7)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [2 + 3 * torch.randn(size, 1, 8, 8, generator=generator) for size in sizes]


def recorded(model, batches):
    with recording(tracking_layers(model)) as record, torch.no_grad():
        for x in batches:
            model(x)
    return record


@pytest.mark.parametrize("momentum", [0.001, 0.1, 0.9, 1.0])
def test_running_statistics_of_another_momentum_are_those_torch_averages(momentum):
    model = network()
    record = recorded(copy.deepcopy(model), inputs())
    for layer in tracking_layers(model).values():
        layer.momentum = momentum
    recorded(model, inputs())
    for name, layer in tracking_layers(model).items():
        mean, var = with_momentum(record[name], momentum, tracked=3)
        torch.testing.assert_close(mean.float(), layer.running_mean)
        torch.testing.assert_close(var.float(), layer.running_var)


def test_calls_before_the_recorded_ones_have_their_mean():
    """One repeated batch: the record of two calls stands for eight."""
    model, x = network(), inputs()[0]
    record = recorded(copy.deepcopy(model), [x, x])
    recorded(model, [x] * 8)
    for name, layer in tracking_layers(model).items():
        torch.testing.assert_close(with_momentum(record[name], 0.1, tracked=8)[1].float(), layer.running_var)


def test_only_the_latest_calls_count_if_there_are_more_than_were_tracked():
    model = network()
    batches = inputs()
    record = recorded(copy.deepcopy(model), batches)
    recorded(model, batches[1:])
    for name, layer in tracking_layers(model).items():
        torch.testing.assert_close(with_momentum(record[name], 0.1, tracked=2)[0].float(), layer.running_mean)


def test_population_statistics_are_those_of_norms():
    model, batches = network(), inputs()
    found = population(recorded(copy.deepcopy(model), batches))
    for name, (mean, var) in ns.norms.use_population_statistics(model, batches).items():
        torch.testing.assert_close(found[name][0], mean)
        torch.testing.assert_close(found[name][1], var)
    other = network()
    set_statistics(tracking_layers(other), found)
    for name, layer in tracking_layers(model).items():
        torch.testing.assert_close(tracking_layers(other)[name].running_var, layer.running_var)


def test_no_hook_is_left():
    model = network()
    recorded(model, inputs())
    assert not any(layer._forward_pre_hooks for layer in model.modules())
