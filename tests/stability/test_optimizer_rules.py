"""Adding an optimizer: one registered rule is enough, with and without second moments."""

import math

import pytest
import torch
from torch import Tensor, nn

from normscope import losses, measure
from normscope.stability.optimizer_rules import RULES, OptimizerRule, reads_second_moment, rule_for

BATCH = torch.tensor([[2.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
CURVATURE = 4.0


@pytest.fixture
def rules():
    """The registered rules; what a test adds is taken out again."""
    before = dict(RULES)
    yield RULES
    RULES.clear()
    RULES.update(before)


def _line() -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(layer.weight)
    return layer


def _grows(layer: nn.Linear, optimizer: torch.optim.Optimizer, steps: int = 400) -> bool:
    for _ in range(steps):
        optimizer.zero_grad()
        losses.half_mse(layer(BATCH[0]), BATCH[1]).backward()
        optimizer.step()
    return abs(layer.weight.item()) > 1


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_rule_without_second_moments_limits_an_optimizer_that_divides_by_nothing(rules, share):
    @rule_for(torch.optim.ASGD)
    def _averaged(optimizer, groups):
        return OptimizerRule(2.0, "eta* = 2 / lambda")

    layer = _line()
    optimizer = torch.optim.ASGD(layer.parameters(), lr=1.0, lambd=0.0)
    found = measure(layer, losses.half_mse, BATCH, optimizer=optimizer)
    assert found.eta_star == pytest.approx(2 / CURVATURE, rel=1e-5)
    assert not found.preconditioned
    tried = torch.optim.ASGD(layer.parameters(), lr=share * found.eta_star, lambd=0.0)
    assert _grows(layer, tried) == (share > 1)


def test_a_rule_with_second_moments_is_preconditioned_by_them(rules):
    class Rooted(torch.optim.Optimizer):
        """Steps by g / (sqrt(v) + eps), with v kept under a name of its own."""

        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr, "eps": 0.0, "weight_decay": 0.0, "maximize": False})

    @rule_for(Rooted, second_moment=lambda state, group: state.get("v"))
    def _rooted(optimizer, groups):
        return OptimizerRule(2.0, "eta* = 2 / lambda_P")

    layer = _line()
    optimizer = Rooted(layer.parameters(), lr=1.0)
    optimizer.state[layer.weight] |= {"v": torch.full((1, 1), 9.0, dtype=torch.float64), "step": torch.tensor(1.0)}
    found = measure(layer, losses.half_mse, BATCH, optimizer=optimizer)
    assert found.lambda_max == pytest.approx(CURVATURE / math.sqrt(9.0), rel=1e-5)
    assert found.preconditioned


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_second_moments_are_read_after_the_first_gradient_only(kind):
    layer = _line()
    optimizer = kind(layer.parameters(), lr=0.1)
    read = reads_second_moment(optimizer)
    assert (read is None) == (kind is torch.optim.SGD)
    if read is None:
        return
    group = optimizer.param_groups[0]
    assert read(optimizer.state[layer.weight], group) is None
    losses.half_mse(layer(BATCH[0]), BATCH[1]).backward()
    gradient: Tensor = layer.weight.grad.clone()
    optimizer.step()
    share = 1 - group["alpha"] if kind is torch.optim.RMSprop else 1.0
    torch.testing.assert_close(read(optimizer.state[layer.weight], group), share * gradient.square())
